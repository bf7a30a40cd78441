package sim

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/locktest"
)

// mutations are mistakes that somebody could make, and that the runs must find.
var mutations = []struct {
	name    string
	want    string // part of a violation
	seeds   bool   // it takes hundreds of seeds: too many for CI
	in      string // scenario, if not "harsh"
	kind    string // of lock, if not "lock"
	mutate  func(s *scenario)
	script  string
	old     string
	instead string
}{
	{
		name: "the count is added to instead of set", want: "the count in Redis",
		script: "lock/enter", old: "lengthen(lock, tonumber(lease))", instead: "redis.call('hincrby', lock, id, 1)",
	},
	{
		name: "a re-entry adds to the count", want: "the count in Redis",
		script: "lock/reenter", old: "redis.call('hset', lock, id, entries)", instead: "redis.call('hincrby', lock, id, 1)",
	},
	{
		name: "holders do not look at their leases", want: "and so does",
		mutate: func(s *scenario) { s.heedless = true },
	},
	{
		name: "acquire does not look for a tombstone", want: "held by nobody", in: "late",
		script: "lock/enter", old: "redis.call('exists', lock, tombstone) == 0", instead: "redis.call('exists', lock) == 0",
	},
	{
		name: "release does not look for its owner", want: "lost before the deadline",
		script: "lock/release", old: "redis.call('hdel', lock, id) == 0", instead: "redis.call('del', lock) == 0",
	},
	{
		name: "renew makes the lock anew", want: "",
		script: "shared/renewal", old: "return -redis.call('exists', lock)", instead: "redis.call('hset', lock, id, 1)",
	},
	{ // only a loss of the data ends a hold that is renewed in time
		name: "a renewal does not find out that the hold is gone", want: "and so does", in: "everything",
		script: "shared/renewal", old: "return -redis.call('exists', lock)", instead: "return 1",
	},
	{
		name: "acquire does not look for a holder", want: "and so does",
		script: "lock/enter", old: "redis.call('exists', lock, tombstone) == 0", instead: "redis.call('exists', tombstone) == 0",
	},
	{
		name: "tokens for hand-overs begin with the last one", want: "not above",
		script: "lock/enter", old: "return {1, token - n, n}", instead: "return {1, last, n}",
	},
	{
		name: "a late release grants a lock that was stood by for", want: "and so does", in: "late",
		script: "lock/release_next", old: "redis.call('hdel', lock, id) == 0", instead: "redis.call('del', lock) == 2",
	},
	{
		name: "who has the lock stands by still", want: "", in: "calm", kind: "fenced",
		script: "lock/stand_by", old: "if mine then\n  redis.call('del', standing)\nend\nreturn (", instead: "return (",
	},
	{
		name: "who was granted the lock stands by still", want: "", in: "calm", kind: "fenced",
		script: "lock/release_next", old: "redis.pcall('getdel', standing)", instead: "redis.pcall('get', standing)",
	},
	{
		name: "who stands by does not look for its tombstone", want: "", in: "late", kind: "fenced",
		script: "lock/stand_by", old: "redis.call('exists', tombstone) == 1", instead: "false",
	},
	{
		name: "who stands by has the token of then", want: "not above", in: "late",
		script: "lock/release_next", old: "tonumber(token) <= tonumber(last)", instead: "false",
	},
	{
		name: "a release that grants tells nobody else", want: "the lock was free", in: "calm",
		script: "lock/release_next", old: "return told(1, announce(how, channel, '0'))", instead: "return 1",
	},
	{
		name: "tokens do not grow", want: "not above",
		script: "shared/token", old: "return now", instead: "return 1",
	},
	{
		name: "a waiter in line does not look for its tombstone", want: "", in: "late", kind: "fair",
		script: "fair/enter", old: "redis.call('exists', tombstone) == 1", instead: "false",
	},
	{
		name: "who is first in line does not look for a holder", want: "and so does", kind: "fair",
		script: "fair/enter", old: "local free = #holders == 0", instead: "local free = true",
	},
	{
		name: "a reader does not look for a writer", want: "and so does", kind: "read-write",
		script: "rw/read_enter", old: "mode ~= 'read' and redis.call('exists', lock) == 1", instead: "false",
	},
	{
		name: "a writer does not look for readers", want: "and so does", kind: "read-write",
		script: "rw/write_enter", old: "local ms, seen = alive(lock, timers)", instead: "local ms, seen = 0, true",
	},
	{
		name: "a renewal forgets the reader's timer", want: "lost before the deadline", kind: "read-write",
		script: "shared/reading", old: "lengthen(first, lease)", instead: "",
	},
	{
		name: "a reader does not look for its tombstone", want: "held by nobody", in: "late", kind: "read-write",
		script: "rw/read_enter", old: "redis.call('exists', tombstone) == 1", instead: "false",
	},
	{
		name: "a reader in the queue does not look for a writer", want: "and so does", kind: "fair read-write",
		script: "queue/enter", old: "if mode == 'shared' and", instead: "at = mode ~= 'shared' and at\n  if mode == 'shared' and",
	},
	{
		name: "a writer in the queue does not look for holders", want: "and so does", kind: "priority",
		script: "queue/enter", old: "return at and at >= now", instead: "return mode == 'shared' and at and at >= now",
	},
	{
		name: "a waiter in the queue does not look for its tombstone", want: "", in: "late", kind: "fair read-write",
		script: "queue/enter", old: "redis.call('exists', tombstone) == 1", instead: "false",
	},
	{
		name: "a late release in a queue ends the next hold", want: "lost before the deadline", in: "late", kind: "priority",
		script: "queue/release", old: "not held(mode, id)", instead: "not live('exclusive')",
	},
	{
		name: "a late release of a fair lock ends the next hold", want: "lost before the deadline", in: "late", kind: "fair",
		script: "fair/release", old: "redis.call('hdel', lock, id) == 1", instead: "redis.call('del', lock) == 1",
	},
	{
		name: "a fair lock is for one who is not first in line", want: "", in: "calm", kind: "fair",
		script: "fair/enter", old: "if free and (not head or head == id) then", instead: "if free then",
	},
	{
		name: "a waiter in line is not known to be there", want: "", kind: "fair",
		script: "fair/enter", old: "queued = deadline\n", instead: "queued = false\n",
	},
	{
		name: "a leader proclaims that does not lead any more", want: "proclaims", in: "late", kind: "election",
		script: "election/proclaim", old: "not held('exclusive', id)", instead: "false",
	},
	{
		name: "a candidate does not look for a leader", want: "and so does", kind: "election",
		script: "queue/enter", old: "return at and at >= now", instead: "return mode == 'shared' and at and at >= now",
	},
	{
		name: "the value comes after the leadership", want: "proclaims", in: "calm", kind: "election",
		script: "queue/enter", old: "'token', whole(token), 'value', value)", instead: "'token', whole(token))",
	},
	{
		name: "an acquire does not count the free permits", want: "permits of", kind: "permits",
		script: "permits/enter", old: "left < n", instead: "false",
	},
	{
		name: "permits are reclaimed twice", want: "permits are free", kind: "permits",
		script: "shared/permits", old: "tell(give(n))", instead: "give(n)\n    tell(give(n))",
	},
	{
		name: "a renewal makes permits anew", want: "permits are free", kind: "permits",
		script: "permits/renew", old: "giveBack(there)\n  return told(0)", instead: "first = 0",
	},
	{
		name: "an acquire of permits does not look for its tombstone", want: "held by nobody", in: "late", kind: "permits",
		script: "permits/enter", old: "redis.call('exists', tombstone) == 1", instead: "false",
	},
	{
		name: "a fair acquire does not count the free permits", want: "permits of", kind: "fair permits",
		script: "fairpermits/enter", old: "or left < n then", instead: "then",
	},
	{
		name: "a fair hold that ends gives its permits back twice", want: "permits of", kind: "fair permits",
		script: "shared/permitqueue", old: "redis.call('hdel', state, hold)", instead: "",
	},
	{
		name: "a fair acquire does not look for its tombstone", want: "", in: "late", kind: "fair permits",
		script: "fairpermits/enter", old: "redis.call('exists', tombstone) == 1", instead: "false",
	},
	{
		name: "a node votes twice", want: "and so does", kind: "redlock",
		script: "quorum/acquire", old: "elseif held then", instead: "elseif false then",
	},
	{
		name: "a node forgets its counter", want: "not above", kind: "redlock",
		script: "quorum/acquire", old: "n = redis.call('incr', counter)", instead: "n = 2",
	},
	{
		name: "the token is not written back", want: "not above", in: "everything", kind: "redlock",
		script: "quorum/raise", old: "raise(counter, highest, tonumber(token))", instead: "",
	},
	{
		name: "a node votes for one who has left", want: "held by nobody", in: "late", kind: "redlock",
		script: "quorum/acquire", old: "redis.call('exists', tombstone) == 1", instead: "false",
	},
	{
		name: "a renewal votes for one who has left", want: "held by nobody", in: "late", kind: "redlock",
		script: "quorum/renew", old: "redis.call('exists', tombstone) == 1", instead: "false",
	},
	{
		name: "a release takes another's vote back", want: "", kind: "redlock",
		script: "quorum/release", old: "redis.call('hget', record, 'attempt') == id", instead: "true",
	},
	{
		name: "no quarantine", want: "and so does", in: "losses", kind: "redlock",
		mutate: func(s *scenario) { s.kind.forgetful = 5 },
	},
	{
		name: "nodes that have forgotten begin to count at 0", want: "not above", in: "losses", kind: "redlock",
		mutate: func(s *scenario) { s.kind.forgetful = 5 },
		script: "shared/counter", old: "redis.call('get', highest) or micros()", instead: "redis.call('get', highest) or 0",
	},
	{
		name: "three of five forget", want: "and so does", seeds: true, in: "losses", kind: "redlock, 4 of 5",
		mutate: func(s *scenario) { s.kind.forgetful = 3 },
	},
	{
		name: "all masters may vote", want: "and so does", in: "losses", kind: "redlock with quarantine",
		mutate: func(s *scenario) {
			const name = "shared/admission"
			text, err := source(name)
			if err != nil {
				panic(err)
			}
			text = strings.Replace(text, "if not admitted then", "if false then", 1)
			s.scripts = map[string]string{name: strings.Replace(text, "return tonumber(redis.call('hget', ADMITTED, 'floor'))", "return 0", 1)}
		},
	},
	{
		name: "nobody looks at the clock", want: "and so does", in: "clocks", kind: "redlock with quarantine",
		script: "shared/admission", old: "now < tonumber(ARGV[#ARGV - 1]) or now > tonumber(ARGV[#ARGV])", instead: "false",
	},
	{
		// Runs with a loss of data excuse records only of those who came back by it.
		name: "a release leaves the record, its time over", want: "left in Redis", in: "losses", kind: "redlock, 4 of 5",
		script: "quorum/release", old: "redis.call('del', record)", instead: "redis.call('hset', record, 'until', 0)",
	},
	{
		name: "a member is taken that is held", want: "and so does", kind: "multi at once",
		script: "lock/enter_all", old: "mine == 0 and redis.call('exists', lock) == 1", instead: "false",
	},
	{
		name: "a release tells nobody", want: "the lock was free", in: "calm",
		script: "lock/release", old: "announce(how, channel, '0')", instead: "0",
	},
	{
		name: "one who gives up a grant tells nobody", want: "the lock was free", in: "calm",
		script: "lock/abandon", old: "announce(how, channel, '0')", instead: "",
	},
	{
		name: "a release of a fair lock wakes nobody", want: "the lock was free", in: "calm", kind: "fair",
		script: "fair/release", old: "tell('', term, channels, how, freed and -2)", instead: "",
	},
	{
		name: "a release in a queue wakes nobody", want: "the lock was free", in: "calm", kind: "priority",
		script: "queue/release", old: "wake(channels, how, ARGV[7])", instead: "",
	},
	{
		name: "one who leaves the line tells nobody", want: "the lock was free", in: "calm", kind: "fair",
		script: "fair/abandon", old: "tell('', term, channels, how, freed and -2)", instead: "",
	},
	{
		name: "one who leaves the queue tells nobody", want: "the lock was free", in: "calm", kind: "priority",
		script: "queue/abandon", old: "wake(channels, how, ARGV[7])", instead: "",
	},
	{
		name: "a message does not say whom in the queue it wakes", want: "the lock was free", in: "calm", kind: "priority",
		script: "shared/queue", old: "or ''), id)", instead: "or ''), '0')",
	},
	{
		name: "a writer who leaves tells nobody", want: "the lock was free", in: "calm", kind: "read-write",
		script: "shared/leave", old: "announce(how, channel, '1')", instead: "",
	},
	{
		name: "an element of a batch that fails counts as done", want: "", kind: "lock, combined",
		mutate: func(s *scenario) {
			s.garble = func(cmds []redis.Cmder) {
				for _, cmd := range cmds {
					if cmd.Err() != nil {
						cmd.SetErr(nil)
						cmd.(interface{ SetVal(any) }).SetVal(int64(1))
						continue
					}
					if all, ok := cmd.(interface{ Val() any }).Val().([]any); ok && locktest.RunsForCallers(cmd) {
						for i := range all {
							all[i] = cmp.Or[any](all[i], int64(1))
						}
					}
				}
			}
		},
	},
	{
		name: "the replies of a script for several callers are off by one", want: "", kind: "lock, combined",
		mutate: func(s *scenario) {
			s.garble = func(cmds []redis.Cmder) {
				for _, cmd := range cmds {
					if all, ok := cmd.(interface{ Val() any }).Val().([]any); ok && locktest.RunsForCallers(cmd) {
						all = append(all[1:], all[0])
						cmd.(interface{ SetVal(any) }).SetVal(all)
					}
				}
			}
		},
	},
	{
		name: "the replies of a batch are off by one", want: "", kind: "read-write, combined",
		mutate: func(s *scenario) {
			s.garble = func(cmds []redis.Cmder) {
				type reply interface {
					redis.Cmder
					Val() any
					SetVal(any)
				}
				first := cmds[0].(reply).Val()
				for i, cmd := range cmds[:len(cmds)-1] {
					cmd.(reply).SetVal(cmds[i+1].(reply).Val())
				}
				cmds[len(cmds)-1].(reply).SetVal(first)
			}
		},
	},
	{
		name: "a node whose vote is taken back tells nobody", want: "the lock was free", in: "calm", kind: "redlock",
		script: "quorum/release", old: "redis.pcall('publish', channel, '0')", instead: "0",
	},
}

// source is the file of a script, or of what scripts share ("shared/ttl").
func source(name string) (string, error) {
	text, err := os.ReadFile("../../scripts/" + name + ".lua")
	return string(text), err
}

// change is a mistake in a script: instead of what stands in it once.
type change struct{ script, old, instead string }

// changed returns the texts of scripts with mistakes.
func changed(t *testing.T, changes ...change) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, c := range changes {
		text, err := source(c.script)
		if err != nil || strings.Count(text, c.old) != 1 {
			t.Fatalf("%s.lua does not have %q once: %v", c.script, c.old, err)
		}
		texts[c.script] = strings.Replace(text, c.old, c.instead, 1)
	}
	return texts
}

// mutationSeeds is how many seeds a mistake has to show itself. Nearly all need one or two, the
// rarest some hundred; which seeds show it changes with each change of the engine, so that a number
// for each mistake would only say what was so one day.
const mutationSeeds = 600

// shows plays seeds until one has a violation that contains want.
func shows(t *testing.T, want string, run func(seed uint64) (wrong []string)) {
	t.Helper()
	byTurns(t)
	for seed := range uint64(mutationSeeds) {
		for _, v := range run(seed + 1) {
			if strings.Contains(v, want) {
				t.Logf("seed %d: %s", seed+1, v)
				return
			}
		}
	}
	t.Errorf("not found in %d seeds", mutationSeeds)
}

func TestSimulationFindsMutations(t *testing.T) {
	if !thorough() {
		t.Skip("needs -sim.all: it takes a minute")
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if m.seeds && lockSeeds(0) == 0 {
				t.Skip("needs -sim.seeds")
			}
			all := append(slices.Clone(scenarios), redScenarios...)
			s := all[slices.IndexFunc(all, func(s scenario) bool { return s.name == cmp.Or(m.in, "harsh") })]
			if m.kind != "" {
				all := slices.Concat(kinds, redKinds, multiKinds)
				s.kind = all[slices.IndexFunc(all, func(k kind) bool { return k.name == m.kind })]
			}
			if m.mutate != nil {
				m.mutate(&s)
			}
			if m.script != "" {
				s.scripts = changed(t, change{m.script, m.old, m.instead})
			}
			shows(t, m.want, func(seed uint64) []string { return lockRun(t, seed, s).judge.wrong })
		})
	}
}
