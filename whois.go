package rlock

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
	whoisWithin = protocol.GiveUpGrace
	whoisAgain  = 2 * time.Second // a client may be about to introduce itself
	whoisBarred = time.Minute     // Redis does not permit to ask
	whoisMost   = 1000            // clients that are kept
	whoisAtOnce = 100             // clients that one call asks for
)

// whois knows which process a client is.
type whois struct {
	wire    *wire.Deployment // of the client that asks
	prefix  string
	self    string // its own id,
	process Process

	mu       sync.Mutex // guards the rest, and what is asked
	byClient map[string]*whoisAsked
}

// whoisAsked is a question about a client. The process of one never changes.
type whoisAsked struct {
	client  string
	at      time.Time // by the real clock, as other bounds of calls
	again   time.Time // when it is asked once more, unless the process is known
	open    int       // servers that are still to answer
	done    chan struct{}
	process Process // zero: not known
}

// name adds their processes to holders, as far as they can be had soon. They are asked for on some
// servers; on none: what is known has to do.
func (w *whois) name(holders []Holder, servers []*wire.Deployment) {
	asked := make([]*whoisAsked, len(holders))
	var ask []*whoisAsked
	w.mu.Lock()
	for i := range holders {
		switch client := protocol.ClientOf(holders[i].HoldID); client {
		case "": // of Java
		case w.self:
			holders[i].Process = w.process
		default:
			asked[i] = w.byClient[client]
			if asked[i].stale() && len(servers) > 0 && len(ask) < whoisAtOnce {
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
			holders[i].Process = w.answer(q)
		}
	}
}

// stale reports whether a question, if there is one, is to be asked once more.
func (q *whoisAsked) stale() bool {
	return q == nil || q.process == (Process{}) && !time.Now().Before(q.again)
}

// openLocked makes a question that so many servers will answer. If there are too many, any of those are
// dropped that are older.
func (w *whois) openLocked(client string, servers int) *whoisAsked {
	for other := range w.byClient {
		if len(w.byClient) < whoisMost {
			break
		}
		delete(w.byClient, other)
	}
	now := time.Now()
	q := &whoisAsked{client: client, at: now, again: now.Add(whoisAgain), open: servers, done: make(chan struct{})}
	if w.byClient == nil {
		w.byClient = map[string]*whoisAsked{}
	}
	w.byClient[client] = q
	return q
}

// ask sends questions to some servers, in the background.
func (w *whois) ask(all []*whoisAsked, servers []*wire.Deployment) {
	keys := make([]string, len(all))
	for i, q := range all {
		keys[i] = protocol.ClientKey(w.prefix, q.client)
	}
	for _, server := range servers {
		round := server.NewRound(len(keys))
		protocol.WhoIs(keys, round, func(i int, text string, err error) { w.told(all[i], text, err) })
		w.wire.Go(func() { round.Send(func(redis.UniversalClient, []wire.Answer) {}) })
	}
}

// told notes the answer of a server. The first that knows the client is enough.
func (w *whois) told(q *whoisAsked, text string, err error) {
	p, known := introduced(text)
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
		q.again = time.Now().Add(whoisBarred)
	}
	if q.open == 0 {
		close(q.done)
	}
}

// answer waits until a question is answered, but not for long.
func (w *whois) answer(q *whoisAsked) Process {
	select {
	case <-q.done:
	default:
		late := time.NewTimer(whoisWithin - time.Since(q.at))
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
