package quorum

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

var (
	// ErrNoQuorum: too few nodes could vote. The message has the failure of each node. These errors
	// match too, except wire.ErrRefused: the other nodes may still grant the lock. It matches
	// wire.ErrUnreachable, unless so many nodes refuse for good that no retry helps.
	ErrNoQuorum error = noQuorum{}

	// ErrInvalidArgument: the nodes cannot be used this way. Two nodes that are one server
	// may be noticed late.
	ErrInvalidArgument = errors.New("invalid argument")

	// ErrDoubtful: the release has ended the hold, unless it was lost before.
	ErrDoubtful = errors.New("the lock may have been lost before")
)

type noQuorum struct{}

func (noQuorum) Error() string        { return "no quorum" }
func (noQuorum) Is(target error) bool { return target == wire.ErrUnreachable }

// ofNode is the failure of a node. It matches the node's reply, but not wire.ErrRefused: the others may grant the lock.
type ofNode struct{ error }

func (e ofNode) Unwrap() error {
	if wire.IsReply(e.error) && errors.Is(e.error, wire.ErrRefused) {
		return errors.Unwrap(e.error)
	}
	return e.error
}

func argErr(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidArgument, fmt.Sprintf(format, args...))
}

var (
	errUnanswered = errors.New("it does not answer, or has not answered the last request yet")
	errNotYet     = errors.New("it has not answered yet")
	errAnew       = errors.New("it had no vote for this hold, and has one since now")
	errRepeated   = errors.New("the repeated request found nothing")

	errRepeatedBusy = errors.New("the repeated request found another owner's vote")
	errUnknown      = errors.New("its run_id is not known yet")
	errRestarted    = errors.New("restarted meanwhile")
	errClockOff     = errors.New("its clock is off the median of the nodes, or the request was under way for too long")
)

// noQuorum returns ErrNoQuorum with the failure of each node, and with what the nodes replied that did not
// vote for the hold.
func (l *Lock) noQuorum(t *tally) error { return l.tooFew(l.q, t) }

// tooFew is noQuorum for any number of required nodes. If so many refuse for good that the others are too few, the
// error matches wire.ErrRefused instead of wire.ErrUnreachable: waiting does not help.
func (l *Lock) tooFew(need int, t *tally) error {
	refuse := t.failed.forGood()
	if l.n-refuse >= need {
		return l.perNode(fmt.Errorf("%w: %s", ErrNoQuorum, l.missing(need, t)), t.failed)
	}
	text := fmt.Sprintf("%v: %d of %d nodes refuse for good, %d have to vote", wire.ErrRefused, refuse, l.n, need)
	var replies []error
	for i, n := range l.nodes {
		why := t.failed[i]
		if why == nil {
			continue
		}
		text += fmt.Sprintf("; %s: %v", n.Name, wire.Refused(why))
		if isLasting(why) {
			replies = append(replies, wire.Refused(why))
		}
	}
	return &refusedForGood{text, replies}
}

// missing describes which votes are missing. The numbers add up to all nodes without a vote for the hold, which
// are more than a quorum can do without.
func (l *Lock) missing(need int, t *tally) string {
	regranted := 0
	for _, why := range t.failed {
		if why == errAnew {
			regranted++
		}
	}
	text := fmt.Sprintf("%d of %d nodes could not vote", len(t.failed)-regranted, l.n)
	others := counted(regranted, "has voted only now", "have voted only now") +
		counted(t.sights[taken], "votes for another owner", "vote for another owner") +
		counted(t.sights[gone], "has no vote for it", "have no vote for it")
	if others == "" {
		return fmt.Sprintf("%s, %d have to", text, need)
	}
	return fmt.Sprintf("%s%s; %d have to vote", text, others, need)
}

// counted returns ", n verb" for n nodes, or "" if n is 0.
func counted(n int, one, several string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", 1 " + one
	}
	return fmt.Sprintf(", %d %s", n, several)
}

// forGood returns how many nodes refuse for good.
func (f failures) forGood() (n int) {
	for _, why := range f {
		if isLasting(why) {
			n++
		}
	}
	return n
}

// isLasting reports whether a node has replied with an error that a retry does not remove.
func isLasting(why error) bool { return wire.IsReply(why) && !wire.Transient(why) }

// refusedForGood is the error if too few nodes could vote because the others refuse for good. It matches their
// replies, and ErrNoQuorum, but not wire.ErrUnreachable.
type refusedForGood struct {
	text    string
	replies []error
}

func (e *refusedForGood) Error() string        { return e.text }
func (e *refusedForGood) Unwrap() []error      { return e.replies }
func (e *refusedForGood) Is(target error) bool { return target == ErrNoQuorum }

// doubted returns the error of a release that found so many votes gone or unknown that another hold may have
// had the lock.
func (l *Lock) doubted(t *tally) error {
	return l.perNode(fmt.Errorf("%w: %s", ErrDoubtful, t.summary()), t.failed)
}

// notConfirmed returns the error of a round that found too few votes, or so many of them gone or unknown that
// another hold may have had the lock.
func (l *Lock) notConfirmed(t *tally) error {
	if !t.enough(t.votes + t.later) {
		return l.noQuorum(t)
	}
	return l.perNode(fmt.Errorf("%w that has lasted: %s", ErrNoQuorum, t.summary()), t.failed)
}

// summary describes what the replies prove about the nodes.
func (t *tally) summary() string {
	s, text := t.sights, fmt.Sprintf("%d of %d nodes have kept their votes", t.sights[older], t.n)
	add := func(nodes int, what string) { text += counted(nodes, what, what) }
	add(s[sole], "have voted for nobody else")
	add(s[none]+s[newer], "may have voted for another before")
	add(s[gone]+s[replaced], "have no vote for it")
	add(s[taken], "vote for another")
	add(s[silent], "do not reply")
	return text
}

// unsettled returns the error if missing replies could complete a quorum for one holder.
func (l *Lock) unsettled(t *tally) error {
	_, most := t.most()
	return l.perNode(fmt.Errorf("%w: %d of %d nodes vote for one holder, and %d gave no usable reply", ErrNoQuorum, most, l.n, len(t.failed)), t.failed)
}

// votesText describes the votes that a refused try met.
func (t *grantTally) votesText() string {
	return fmt.Sprintf("%d of %d nodes have voted for others, and %d could not vote", t.sights[taken], t.n, len(t.failed)) + t.unanswered("; ")
}

// quarantined is votesText for a try that failed because so many nodes are in quarantine that the others are no
// quorum. The quarantine comes first, with its duration.
func (t *grantTally) quarantined(left time.Duration) string {
	in := 0
	for _, why := range t.failed {
		if errors.As(why, new(protocol.InQuarantine)) {
			in++
		}
	}
	are := "are"
	if in == 1 {
		are = "is"
	}
	text := fmt.Sprintf("%d of %d nodes %s %v", in, t.n, are, protocol.InQuarantine{Left: left})
	rest := counted(len(t.failed)-in, "could not vote", "could not vote") +
		counted(t.sights[taken], "votes for another owner", "vote for another owner") +
		t.unanswered(", ")
	if rest == "" {
		return text
	}
	return text + ";" + rest[1:]
}

// unanswered returns how many nodes have not replied, as text after sep.
func (t *grantTally) unanswered(sep string) string {
	n := 0
	for i, g := range t.got {
		if g.isPending && t.failed[i] == nil {
			n++
		}
	}
	return strings.Replace(counted(n, "has not answered yet", "have not answered yet"), ", ", sep, 1)
}

// perNode adds the failure of each node to an error.
func (l *Lock) perNode(err error, failed failures) error {
	for i, n := range l.nodes {
		if why := failed[i]; why != nil {
			err = fmt.Errorf("%w; %s: %w", err, n.Name, ofNode{wire.Refused(why)})
		}
	}
	return err
}
