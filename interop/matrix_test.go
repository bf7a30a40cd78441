//go:build unix

package interop

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The table in the documentation: what each subtest of a case has shown, by case,
// direction and type.

// cases are the rows.
const (
	caseExclusion = "2 + 2 processes exclude each other"
	caseRefused   = "a held lock is refused, and its state seen"
	caseRelease   = "a release wakes the waiter"
	caseForce     = "a force-unlock wakes the waiter"
	caseReentry   = "re-entry and partial release"
	caseNames     = "names: plain, `{tag}x`, not ASCII"
	caseReaders   = "readers share, and keep writers out"
	caseTurns     = "a writer here that waits keeps readers here out"
	caseLong      = "a long reader that leaves takes its lease along"
	caseDowngrade = "a writer that reads on lets readers in"
	caseInner     = "a read that ends leaves the write lock its time"
	caseMulti     = "a member of the other's MultiLock"
	caseTokens    = "tokens increase across languages"
	caseOnce      = "not reentrant, by choice"
	caseOrder     = "the queue is served in order"
	caseOutlives  = "the queue lasts longer than who waits in it"
	caseCancelled = "a waiter that leaves holds nobody up"
	caseKilled    = "a waiter that was killed costs seconds"
	caseRenewal   = "renewals go on for three leases"
	caseShorten   = "no renewal ends what a reader was promised"
	caseForced    = "a forced hold reports its loss"
	caseExpired   = "a lease that is over frees the lock"
	caseStopped   = "a holder that was stopped does its successor no harm"
	caseCrashed   = "a crash frees the lock after the lease"
	caseFailover  = "a failover with all data ends no hold, and no wait"
	caseLossy     = "a hold that a failover loses ends, and its unlock fails"
	caseConfirmed = "a hold that a replica has to confirm excludes, and is excluded"
	casePermits   = "permits are set, taken, added, drained and put back by either"
	caseCounts    = "each counts the other's latch down, and it opens"
	caseDeleted   = "a latch that is deleted frees who waits"
	caseSeveral   = "several permits are taken and given back at the same time"
)

var cases = []string{
	caseExclusion, caseRefused, caseRelease, caseForce, caseReentry, caseNames, caseReaders, caseTurns, caseLong, caseDowngrade,
	caseInner, caseMulti, caseTokens, caseOnce, caseOrder, caseOutlives, caseCancelled, caseKilled, caseRenewal, caseShorten,
	caseForced, caseExpired, caseStopped, caseCrashed, caseFailover, caseLossy, caseConfirmed, casePermits, caseCounts, caseDeleted, caseSeveral,
}

// columns are the types, as the table calls them.
var columns = []string{"Lock", "FairLock", "FencedLock", "SpinLock", "ReadWriteLock", "Semaphore", "CountDownLatch", permitColumn}

// pair is how two meet at a lock: one holds it, and the other wants it. Both are
// types as the peers know them.
type pair struct{ column, held, wanted string }

func (p pair) String() string {
	if p.held == p.wanted {
		return p.held
	}
	return p.held + "-" + p.wanted
}

// contending are the pairs that exclude each other.
var contending = []pair{
	{"Lock", "lock", "lock"},
	{"FairLock", "fair", "fair"},
	{"FencedLock", "fenced", "fenced"},
	{"SpinLock", "spin", "spin"},
	{"ReadWriteLock", "write", "write"},
	{"ReadWriteLock", "write", "read"},
	{"ReadWriteLock", "read", "write"},
}

// exclusive are those of contending of which both sides are of one type.
func exclusive() []pair {
	return slices.DeleteFunc(slices.Clone(contending), func(p pair) bool { return p.held != p.wanted })
}

// directions are the rows of a case. Who is named first acts, and the other
// notices.
func direction(first language) string { return string(first) + " → " + string(first.other()) }

const together = "together"

// eachWay runs a case in both directions for each of the pairs.
func (a *arena) eachWay(t *testing.T, title string, pairs []pair, scenario func(t *testing.T, first, second *peer, p pair)) {
	for _, l := range []language{java, golang} {
		first, second := a.peers(l)
		for _, p := range pairs {
			t.Run(fmt.Sprintf("%s first/%s", l, p), func(t *testing.T) {
				shown.by(t, a, title, direction(l), p.column)
				scenario(t, first, second, p)
			})
		}
	}
}

var shown = &matrix{cells: map[cell][]string{}}

type matrix struct {
	mu       sync.Mutex // guards the rest
	redisson string
	cells    map[cell][]string
}

type cell struct{ title, direction, column string }

// by marks a cell as shown by a test in an arena, if the test passes. Several tests may
// show one cell: when one of them fails there is no table.
func (m *matrix) by(t *testing.T, a *arena, title, direction, column string) {
	m.mu.Lock()
	m.redisson = a.javas[0].version
	m.mu.Unlock()
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		c := cell{title, direction, column}
		if !slices.Contains(m.cells[c], a.kind) {
			m.cells[c] = append(m.cells[c], a.kind)
		}
	})
}

// table is what was shown, in Markdown.
func (m *matrix) table() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "Redisson %s, on one Redis server and on a cluster of three. ✓: on both; sentinel: on a master with two replicas and three sentinels; replica: on a master with one replica; an empty cell: the case is none of this type.\n\n", m.redisson)
	fmt.Fprintf(&b, "| case | direction | %s |\n|---|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, title := range cases {
		for _, row := range []string{together, direction(java), direction(golang)} {
			line, empty := fmt.Sprintf("| %s | %s |", title, row), true
			for _, column := range columns {
				text := ""
				switch kinds := m.cells[cell{title, row, column}]; len(kinds) {
				case 1:
					text = kinds[0]
				case 2:
					text = "✓"
				}
				line += " " + text + " |"
				empty = empty && text == ""
			}
			if !empty {
				b.WriteString(line + "\n")
			}
		}
	}
	return b.String()
}

const (
	document = "../docs/redisson.md"
	begin    = "<!-- What the tests in interop/ have shown; make interop ARGS=-interop.update writes it. -->\n"
	end      = "<!-- end -->\n"
)

// compare fails if the table in the documentation is not that of this run, or
// writes it there. A run of a part of the tests says nothing.
func (m *matrix) compare(update bool) error {
	if !nightly {
		return nil
	}
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return nil
		}
	}
	old, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no place for the table:\n%s%s", document, begin, end)
	}
	text := before + begin + m.table() + end + after
	switch {
	case text == string(old):
		return nil
	case update:
		return os.WriteFile(document, []byte(text), 0o666)
	}
	return fmt.Errorf("%s tells something else than this run has shown (-interop.update writes it):\n%s", document, m.table())
}
