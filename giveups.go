package rlock

import "sync"

// mostGiveUps is how many clean-ups of one lock a client has under way at once. If
// ten thousand waiters are cancelled together, as at a deploy, Redis serves others
// between them.
const mostGiveUps = 32

// giveUps see to it that the clean-ups of a lock take turns. A clean-up that is not
// answered soon makes way for the next: it goes on by itself, ever more slowly.
type giveUps struct {
	mu     sync.Mutex // guards the rest, and the turns of clean-ups
	byLock map[string]*giveUpLine
}

type giveUpLine struct {
	underWay int
	waiting  []*cleanup
}

// giveUpTurn is how far a clean-up has got in its line.
type giveUpTurn int

const (
	noTurn  giveUpTurn = iota // it needs none, or has had it
	waiting                   // the watchdog does not call it
	hasTurn
)

// admit reports whether u may go now. Otherwise done returns it when it may.
func (g *giveUps) admit(u *cleanup) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byLock == nil {
		g.byLock = map[string]*giveUpLine{}
	}
	line := g.byLock[u.r.keys[0]]
	if line == nil {
		line = &giveUpLine{}
		g.byLock[u.r.keys[0]] = line
	}
	if line.underWay == mostGiveUps {
		u.turn = waiting
		line.waiting = append(line.waiting, u)
		return false
	}
	u.turn = hasTurn
	line.underWay++
	return true
}

// done ends the turn of u and returns the clean-up that has it now, or nil.
func (g *giveUps) done(u *cleanup) (next *cleanup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	had := u.turn == hasTurn
	u.turn = noTurn
	if !had {
		return nil
	}
	line := g.byLock[u.r.keys[0]]
	for len(line.waiting) > 0 {
		next, line.waiting = line.waiting[0], line.waiting[1:]
		if next.turn == waiting { // else a shutdown has made it go before
			next.turn = hasTurn
			return next
		}
	}
	line.underWay--
	if line.underWay == 0 {
		delete(g.byLock, u.r.keys[0])
	}
	return nil
}
