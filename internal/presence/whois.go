package presence

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// Who a holder is, is asked when somebody is about to be told of it: an acquire that was refused, a
// State. It is never on the way of a grant. What is known is kept, so a loop of refusals asks once; who
// did not introduce itself is asked for again after a while. Nobody waits for long, and has the id alone
// then; a late answer is for the next.
const (
	askAgain   = 2 * time.Second // a client may be about to introduce itself
	askBarred  = time.Minute     // Redis does not permit to ask
	mostKnown  = 1000            // clients that are kept
	mostAtOnce = 100             // clients that one call asks for
)

// WhoIs knows which process a client is.
type WhoIs struct {
	asker *Introduction // of the client that asks
	self  string        // its own id

	mu       sync.Mutex // guards the rest, and what is asked
	byClient map[string]*question
}

// NewWhoIs returns what a client that introduces itself asks with.
func NewWhoIs(asker *Introduction) *WhoIs {
	return &WhoIs{asker: asker, self: protocol.ClientOf(asker.Site.Client + ":1")}
}

// question is a question about a client. The process of one never changes.
type question struct {
	client  string
	at      time.Time // by the real clock, as other bounds of calls
	again   time.Time // when it is asked once more, unless the process is known
	open    int       // servers that are still to answer
	done    chan struct{}
	process Process // zero: not known
}

// Name returns the processes of holds, as far as they can be had within a time. They are asked for on some
// servers; on none: what is known has to do.
func (w *WhoIs) Name(holdIDs []string, servers []*wire.Deployment, within time.Duration) []Process {
	named := make([]Process, len(holdIDs))
	asked := make([]*question, len(holdIDs))
	var ask []*question
	w.mu.Lock()
	for i, id := range holdIDs {
		switch client := protocol.ClientOf(id); client {
		case "": // of Java
		case w.self:
			named[i] = w.asker.Self
		default:
			asked[i] = w.byClient[client]
			if asked[i].stale() && len(servers) > 0 && len(ask) < mostAtOnce {
				asked[i] = w.openLocked(client, len(servers))
				ask = append(ask, asked[i])
			}
		}
	}
	w.mu.Unlock()
	if len(ask) > 0 {
		w.ask(ask, servers)
	}
	for i, q := range asked {
		if q != nil {
			named[i] = w.answer(q, within)
		}
	}
	return named
}

// stale reports whether a question, if there is one, is to be asked once more.
func (q *question) stale() bool {
	return q == nil || q.process == (Process{}) && !time.Now().Before(q.again)
}

// openLocked makes a question that so many servers will answer. If there are too many, any of those are
// dropped that are older.
func (w *WhoIs) openLocked(client string, servers int) *question {
	for other := range w.byClient {
		if len(w.byClient) < mostKnown {
			break
		}
		delete(w.byClient, other)
	}
	now := time.Now()
	q := &question{client: client, at: now, again: now.Add(askAgain), open: servers, done: make(chan struct{})}
	if w.byClient == nil {
		w.byClient = map[string]*question{}
	}
	w.byClient[client] = q
	return q
}

// ask sends questions to some servers, in the background.
func (w *WhoIs) ask(all []*question, servers []*wire.Deployment) {
	keys := make([]string, len(all))
	for i, q := range all {
		keys[i] = protocol.ClientKey(w.asker.Prefix, q.client)
	}
	for _, server := range servers {
		round := server.NewRound(len(keys))
		protocol.WhoIs(keys, round, func(i int, text string, err error) { w.told(all[i], text, err) })
		w.asker.Site.Wire.Go(func() { round.Send(func(redis.UniversalClient, []wire.Answer) {}) })
	}
}

// told notes the answer of a server. The first that knows the client is enough.
func (w *WhoIs) told(q *question, text string, err error) {
	p, known := Read(text)
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.open == 0 {
		return
	}
	q.open--
	switch {
	case err == nil && known:
		q.process, q.open = p, 0
	case wire.IsReply(err) && !wire.Transient(err):
		q.again = time.Now().Add(askBarred)
	}
	if q.open == 0 {
		close(q.done)
	}
}

// answer waits until a question is answered, but no longer than so long after it was asked.
func (w *WhoIs) answer(q *question, within time.Duration) Process {
	if rest := within - time.Since(q.at); rest > 0 {
		late := time.NewTimer(rest)
		defer late.Stop()
		select {
		case <-q.done:
		case <-late.C:
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return q.process
}
