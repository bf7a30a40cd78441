package rlocktest_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// bad is a lock with one fault. Its zero functions do what the lock does.
type bad struct {
	of      *rlock.Lock
	none    bool // TryLock returns neither a hold nor an error
	acquire func(ctx context.Context, opts []rlock.AcquireOption) (*rlock.Lease, error)
	try     func(ctx context.Context) (*rlock.Lease, error)
	held    func(h *badHold)
}

// badHold is a hold of a bad lock.
type badHold struct {
	*rlock.Lease
	unlock func(ctx context.Context) error
	hidden error // a cause of a loss of which the holder is not notified
	token  int64
}

func (b *bad) hold(lease *rlock.Lease, err error) (*badHold, error) {
	if err != nil {
		return nil, err
	}
	h := &badHold{Lease: lease, unlock: lease.Unlock, token: lease.Token()}
	if b.held != nil {
		b.held(h)
	}
	return h, nil
}

func (b *bad) Lock(ctx context.Context, opts ...rlock.AcquireOption) (*badHold, error) {
	if b.acquire != nil {
		return b.hold(b.acquire(ctx, opts))
	}
	return b.hold(b.of.Lock(ctx, opts...))
}

func (b *bad) TryLock(ctx context.Context, _ ...rlock.TryOption) (*badHold, error) {
	switch {
	case b.none:
		return nil, nil
	case b.try != nil:
		return b.hold(b.try(ctx))
	}
	return b.hold(b.of.TryLock(ctx))
}

func (h *badHold) Unlock(ctx context.Context) error { return h.unlock(ctx) }
func (h *badHold) Token() int64                     { return h.token }

func (h *badHold) Err() error {
	if err := h.Lease.Err(); h.hidden == nil || !errors.Is(err, h.hidden) {
		return err
	}
	return nil
}

func (h *badHold) Done() <-chan struct{} {
	if h.Lease.Err() != nil && h.Err() == nil {
		return make(chan struct{})
	}
	return h.Lease.Done()
}

// hides returns a lock whose holder is not notified of a cause of a loss.
func hides(cause error) func(b *bad, s *rlocktest.Server) {
	return func(b *bad, _ *rlocktest.Server) {
		b.held = func(h *badHold) { h.hidden = cause }
	}
}

// allCases are the cases of Verify.
var allCases = []string{"exclusion", "contention", "refusal", "release", "second release", "canceled wait", "bounded wait",
	"wake-up", "re-entry", "tokens", "tokens after a loss", "renewal", "removal", "outage", "pause", "late release", "keys"}

// allButContention are the cases that call TryLock.
var allButContention = slices.DeleteFunc(slices.Clone(allCases), func(c string) bool { return c == "contention" })

// badLocks are locks with a fault, the cases that have to find it, and a part of what they say. A case with a question
// mark finds it or not, depending on which goroutine runs first.
var badLocks = map[string]struct {
	spoil func(b *bad, s *rlocktest.Server)
	found []string
	text  string
}{
	"a process can have it twice": {
		func(b *bad, _ *rlocktest.Server) {
			var mine atomic.Pointer[rlock.Lease]
			b.try = func(ctx context.Context) (*rlock.Lease, error) {
				if l := mine.Load(); l != nil && l.Err() == nil {
					ctx = l.Context(ctx)
				}
				l, err := b.of.TryLock(ctx)
				if err == nil {
					mine.Store(l)
				}
				return l, err
			}
		},
		[]string{"exclusion", "re-entry"}, "two holders of one process",
	},
	"each process has a lock of its own": {
		func(b *bad, s *rlocktest.Server) {
			c := s.NewClient()
			b.of = c.NewLock(b.of.Name() + c.ID())
		},
		[]string{"exclusion", "contention", "refusal", "second release", "canceled wait", "bounded wait", "wake-up",
			"re-entry", "renewal", "pause", "late release", "keys"},
		"an update is lost",
	},
	"a waiter gives up while others come and go": {
		func(b *bad, _ *rlocktest.Server) {
			b.acquire = func(ctx context.Context, opts []rlock.AcquireOption) (*rlock.Lease, error) {
				if _, ends := ctx.Deadline(); ends {
					return b.of.Lock(ctx, rlock.WithWait(0))
				}
				return b.of.Lock(ctx, opts...)
			}
		},
		[]string{"contention"}, "again and again",
	},
	"a refusal is an error of its own": {
		func(b *bad, _ *rlocktest.Server) {
			b.try = func(ctx context.Context) (*rlock.Lease, error) {
				l, err := b.of.TryLock(ctx)
				if err != nil {
					err = errors.New("busy")
				}
				return l, err
			}
		},
		[]string{"refusal"}, "does not match ErrNotAcquired",
	},
	"a refusal is a timeout": {
		func(b *bad, _ *rlocktest.Server) {
			b.try = func(ctx context.Context) (*rlock.Lease, error) {
				l, err := b.of.TryLock(ctx)
				if errors.Is(err, rlock.ErrNotAcquired) {
					err = errors.Join(err, context.DeadlineExceeded)
				}
				return l, err
			}
		},
		[]string{"refusal"}, "matches \"context deadline exceeded\"",
	},
	"TryLock returns nothing": {
		func(b *bad, _ *rlocktest.Server) { b.none = true }, allButContention,
		"neither a hold nor an error",
	},
	"it is not freed once the context of Unlock has ended": {
		func(b *bad, _ *rlocktest.Server) {
			b.held = func(h *badHold) {
				h.unlock = func(ctx context.Context) error { return errors.Join(ctx.Err(), h.Lease.Unlock(ctx)) }
			}
		},
		[]string{"release"}, "without success",
	},
	"a second Unlock returns nil": {
		func(b *bad, _ *rlocktest.Server) {
			b.held = func(h *badHold) {
				var once sync.Once
				h.unlock = func(ctx context.Context) (err error) {
					once.Do(func() { err = h.Lease.Unlock(ctx) })
					return err
				}
			}
		},
		[]string{"second release"}, "not found",
	},
	"Unlock frees the lock of anyone": {
		func(b *bad, _ *rlocktest.Server) {
			b.held = func(h *badHold) {
				h.unlock = func(ctx context.Context) error {
					err := h.Lease.Unlock(ctx)
					_, _ = b.of.ForceUnlock(context.WithoutCancel(ctx))
					return err
				}
			}
		},
		[]string{"contention", "second release", "wake-up?", "re-entry", "pause", "late release"}, "two holders after the first holder",
	},
	"a waiter that has left gets the lock": {
		func(b *bad, _ *rlocktest.Server) {
			b.acquire = func(ctx context.Context, opts []rlock.AcquireOption) (*rlock.Lease, error) {
				granted := make(chan *rlock.Lease, 1)
				failed := make(chan error, 1)
				go func() {
					l, err := b.of.Lock(context.WithoutCancel(ctx), opts...)
					granted <- l
					failed <- err
				}()
				select {
				case l := <-granted:
					return l, <-failed
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		},
		[]string{"canceled wait", "keys"}, "not free after a waiter has left",
	},
	"a waiter ignores its context": {
		func(b *bad, _ *rlocktest.Server) {
			b.acquire = func(ctx context.Context, opts []rlock.AcquireOption) (*rlock.Lease, error) {
				return b.of.Lock(context.WithoutCancel(ctx), opts...)
			}
		},
		[]string{"canceled wait", "keys"}, "its caller hangs",
	},
	"a free lock is given to a caller that has gone": {
		func(b *bad, _ *rlocktest.Server) {
			b.acquire = func(ctx context.Context, opts []rlock.AcquireOption) (*rlock.Lease, error) {
				if ctx.Err() != nil {
					ctx = context.WithoutCancel(ctx)
				}
				return b.of.Lock(ctx, opts...)
			}
		},
		[]string{"canceled wait"}, "keeps the lock",
	},
	"it ignores WithWait": {
		func(b *bad, _ *rlocktest.Server) {
			b.acquire = func(ctx context.Context, _ []rlock.AcquireOption) (*rlock.Lease, error) { return b.of.Lock(ctx) }
		},
		[]string{"bounded wait"}, "its caller hangs",
	},
	"it takes WithWait for zero": {
		func(b *bad, _ *rlocktest.Server) {
			b.acquire = func(ctx context.Context, opts []rlock.AcquireOption) (*rlock.Lease, error) {
				if len(opts) > 0 {
					opts = append(opts, rlock.WithWait(0))
				}
				return b.of.Lock(ctx, opts...)
			}
		},
		[]string{"bounded wait"}, "gave up after",
	},
	"a waiter polls": {
		func(b *bad, _ *rlocktest.Server) {
			b.acquire = func(ctx context.Context, opts []rlock.AcquireOption) (*rlock.Lease, error) {
				for len(opts) == 0 {
					l, err := b.of.TryLock(ctx)
					if !errors.Is(err, rlock.ErrNotAcquired) {
						return l, err
					}
					select {
					case <-time.After(7 * time.Second):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				return b.of.Lock(ctx, opts...)
			}
		},
		[]string{"wake-up"}, "its caller hangs",
	},
	"the owner waits for itself": {
		func(b *bad, _ *rlocktest.Server) {
			b.try = func(ctx context.Context) (*rlock.Lease, error) { return b.of.TryLock(rlock.WithoutOwner(ctx)) }
		},
		[]string{"re-entry"}, "wait for itself",
	},
	"tokens begin again in each process": {
		func(b *bad, _ *rlocktest.Server) {
			var last atomic.Int64
			b.held = func(h *badHold) { h.token = last.Add(1) }
		},
		[]string{"tokens", "tokens after a loss"}, "refuses the holder",
	},
	"tokens are counted from one after a loss": {
		func(b *bad, s *rlocktest.Server) {
			b.held = func(h *badHold) { h.token = s.Redis().Incr(context.Background(), "counter").Val() }
		},
		[]string{"tokens after a loss"}, "after Redis has lost its data",
	},
	"it is not renewed": {
		func(b *bad, _ *rlocktest.Server) {
			b.try = func(ctx context.Context) (*rlock.Lease, error) {
				return b.of.TryLock(ctx, rlock.WithLease(time.Hour/2))
			}
		},
		[]string{"renewal", "removal"}, "hours of work",
	},
	"a removal is not noticed":     {hides(rlock.ErrRemoved), []string{"removal"}, "continues without the lock"},
	"an outage is not noticed":     {hides(rlock.ErrUnreachable), []string{"outage"}, "continues without the lock"},
	"a pause is not noticed":       {hides(rlock.ErrExpired), []string{"pause"}, "continues without the lock"},
	"Unlock of a lost hold is nil": {lostIsNil, []string{"removal", "outage", "pause", "late release"}, "the work for done"},
	"it keeps a key for each name": {
		func(b *bad, s *rlocktest.Server) {
			b.held = func(h *badHold) {
				s.Redis().Incr(context.Background(), h.Name()+":holds")
			}
		},
		[]string{"keys"}, "memory fills up",
	},
}

func lostIsNil(b *bad, _ *rlocktest.Server) {
	b.held = func(h *badHold) {
		h.unlock = func(ctx context.Context) error {
			if err := h.Lease.Unlock(ctx); !errors.Is(err, rlock.ErrLeaseLost) {
				return err
			}
			return nil
		}
	}
}

// badUses are calls of Verify that it refuses, and what it says.
var badUses = map[string]struct {
	without []string
	text    string
}{
	"a case that does not exist": {[]string{"re-entry", "reentry"}, `has no case "reentry"`},
	"a case of every lock":       {[]string{"exclusion"}, `has to pass the case "exclusion"`},
	"a case twice":               {[]string{"keys", "tokens", "keys"}, `"keys" is left out twice`},
}

// runMistakes runs a test of this file that fails, and returns what it has printed about each of its sub-tests.
func runMistakes(t *testing.T, test string) (sections map[string]string) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), "RLOCKTEST_MISTAKES=1")
	out, _ := cmd.CombinedOutput()
	text := string(out)
	if strings.Contains(text, "panic:") || !strings.Contains(text, "--- FAIL: "+test+" ") {
		t.Fatalf("%s", text)
	}
	sections = map[string]string{}
	starts := regexp.MustCompile(`(?m)^(?:=== RUN +| +--- FAIL: )`+test+`/([^/\s]+)(?:$| )`).FindAllStringSubmatchIndex(text, -1)
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		sections[strings.ReplaceAll(text[at[2]:at[3]], "_", " ")] += text[at[0]:end]
	}
	return sections
}

// Each fault is found by the cases that it breaks and by no others, and each case finds a fault.
func TestVerifyFindsBadLocks(t *testing.T) {
	t.Parallel()
	failed := regexp.MustCompile(`(?m)^ +--- FAIL: TestBadLocks/[^/\s]+/(\S+)`)
	finds := map[string]bool{}
	sections := runMistakes(t, "TestBadLocks")
	for name, b := range badLocks {
		var found []string
		for _, m := range failed.FindAllStringSubmatch(sections[name], -1) {
			c := strings.ReplaceAll(m[1], "_", " ")
			if may := c + "?"; slices.Contains(b.found, may) {
				c = may
			}
			found = append(found, c)
			finds[c] = finds[c] || !slices.Equal(b.found, allButContention)
		}
		want := slices.DeleteFunc(slices.Clone(b.found), func(c string) bool {
			return strings.HasSuffix(c, "?") && !slices.Contains(found, c)
		})
		if !slices.Equal(found, want) || !strings.Contains(sections[name], b.text) {
			t.Errorf("%s: found by %q, want %q, and the text %q in:\n%s", name, found, b.found, b.text, sections[name])
		}
	}
	for _, c := range allCases {
		if !finds[c] {
			t.Errorf("the case %q finds none of the bad locks", c)
		}
	}
}

func TestVerifyRefusesToLeaveOutWhatEveryLockHasToPass(t *testing.T) {
	t.Parallel()
	sections := runMistakes(t, "TestBadUses")
	for name, use := range badUses {
		if text := sections[name]; !strings.Contains(text, use.text) || strings.Contains(text, "/exclusion") {
			t.Errorf("%s: want %q before any case, got:\n%s", name, use.text, text)
		}
	}
}

// mistakes skips a test that another one runs.
func mistakes(t *testing.T) {
	t.Helper()
	if os.Getenv("RLOCKTEST_MISTAKES") == "" {
		t.Skip("it is run by a test above")
	}
}

func TestBadLocks(t *testing.T) {
	mistakes(t)
	for _, name := range slices.Sorted(maps.Keys(badLocks)) {
		t.Run(name, func(t *testing.T) {
			rlocktest.Verify(t, func(s *rlocktest.Server, lock string) *bad {
				b := &bad{of: s.NewClient().NewLock(lock)}
				badLocks[name].spoil(b, s)
				return b
			})
		})
	}
}

func TestBadUses(t *testing.T) {
	mistakes(t)
	for _, name := range slices.Sorted(maps.Keys(badUses)) {
		t.Run(name, func(t *testing.T) {
			rlocktest.Verify(t, func(s *rlocktest.Server, lock string) *rlock.Lock {
				return s.NewClient().NewLock(lock)
			}, badUses[name].without...)
		})
	}
}
