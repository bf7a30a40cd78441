package presence

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// The process of a holder is requested when a result names the holder: an acquire that was refused, or a State. A grant
// never requests it. Replies are cached, so a loop of refusals sends one request. A client without a key is requested
// again after a while. Callers wait a bounded time, and then name only the id; a late reply serves the next caller.
const (
	retryMissing = 2 * time.Second // pause after a reply without a key: the client may be about to introduce itself
	retryRefused = time.Minute     // pause after Redis has refused the request
	mostKnown    = 1000            // how many clients are cached
	mostPerCall  = 100             // how many clients one call requests
)

// WhoIs finds out the processes of clients.
type WhoIs struct {
	own  *Introduction // introduction of this client
	self string        // id of this client

	mu       sync.Mutex // guards the rest, and the questions
	byClient map[string]*question
}

// NewWhoIs returns the WhoIs of a client that introduces itself.
func NewWhoIs(asker *Introduction) *WhoIs {
	return &WhoIs{own: asker, self: protocol.ClientOf(asker.Site.Client + ":1")}
}

// question is a request for the process of a client, and its reply. The process of a client never changes.
type question struct {
	client      string
	requestedAt time.Time // by the real clock, as other bounds of calls
	retryAt     time.Time // when the request may be repeated, unless the process is known
	unanswered  int       // servers that have not replied
	answered    chan struct{}
	process     Process // zero if unknown
}

// Name returns the process of each hold, or a zero Process if it is not known within a time. It requests the processes from
// the given servers; without servers it returns only cached ones.
func (w *WhoIs) Name(holdIDs []string, servers []*wire.Deployment, within time.Duration) []Process {
	named := make([]Process, len(holdIDs))
	questions := make([]*question, len(holdIDs))
	var fresh []*question
	w.mu.Lock()
	for i, id := range holdIDs {
		switch client := protocol.ClientOf(id); client {
		case "": // a hold of Redisson
		case w.self:
			named[i] = w.own.Self
		default:
			questions[i] = w.byClient[client]
			if questions[i].stale() && len(servers) > 0 && len(fresh) < mostPerCall {
				questions[i] = w.newLocked(client, len(servers))
				fresh = append(fresh, questions[i])
			}
		}
	}
	w.mu.Unlock()
	if len(fresh) > 0 {
		w.ask(fresh, servers)
	}
	for i, q := range questions {
		if q != nil {
			named[i] = w.answer(q, within)
		}
	}
	return named
}

// stale reports whether a request is due: q is nil, or its reply did not name the process and the pause is over.
func (q *question) stale() bool {
	return q == nil || q.process == (Process{}) && !time.Now().Before(q.retryAt)
}

// newLocked makes a question for a number of servers. If the cache is full, it drops older questions.
func (w *WhoIs) newLocked(client string, servers int) *question {
	for other := range w.byClient {
		if len(w.byClient) < mostKnown {
			break
		}
		delete(w.byClient, other)
	}
	now := time.Now()
	q := &question{client: client, requestedAt: now, retryAt: now.Add(retryMissing), unanswered: servers, answered: make(chan struct{})}
	if w.byClient == nil {
		w.byClient = map[string]*question{}
	}
	w.byClient[client] = q
	return q
}

// ask sends questions to servers, in the background.
func (w *WhoIs) ask(all []*question, servers []*wire.Deployment) {
	keys := make([]string, len(all))
	for i, q := range all {
		keys[i] = protocol.ClientKey(w.own.Prefix, q.client)
	}
	for _, server := range servers {
		round := server.NewRound(len(keys))
		protocol.WhoIs(keys, round, func(i int, text string, err error) { w.replied(all[i], text, err) })
		w.own.Site.Wire.Go(func() { round.Send(func(redis.UniversalClient, []wire.Answer) {}) })
	}
}

// replied records the reply of a server. The first that has the client's key is enough.
func (w *WhoIs) replied(q *question, text string, err error) {
	p, known := Read(text)
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.unanswered == 0 {
		return
	}
	q.unanswered--
	switch {
	case err == nil && known:
		q.process, q.unanswered = p, 0
	case wire.IsReply(err) && !wire.Transient(err):
		q.retryAt = time.Now().Add(retryRefused)
	}
	if q.unanswered == 0 {
		close(q.answered)
	}
}

// answer returns the process. It waits for the reply until within has passed since the request.
func (w *WhoIs) answer(q *question, within time.Duration) Process {
	if rest := within - time.Since(q.requestedAt); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-q.answered:
		case <-timer.C:
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return q.process
}
