package protocol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/redistest"
)

// A script for many does what it can, and what it has not done is sent by itself. So a fault of it
// may cost only commands: they are counted. Each request that is sent by itself has to be one that
// the script could not do.
func TestRequestsSentTogetherRunAsOneScript(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *redis.Client{
		"standalone": func(t *testing.T) *redis.Client { return redistest.Start(t).Client() },
		"miniredis": func(t *testing.T) *redis.Client {
			_, _, rdb := mini(t)
			return rdb
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := open(t)
			site := siteOn(t, rdb)
			sent := &sentScripts{t: t, names: map[any]string{}}
			for name, s := range site.Scripts {
				sent.names[s.SHA()], sent.names[s.Text()] = name, name
				if s.Many != nil {
					sent.names[s.Many.SHA()], sent.names[s.Many.Text()] = s.Many.Name, s.Many.Name
				}
			}
			rdb.AddHook(sent)
			const n = 5
			var locks [n]*Lock
			ids := [n]string{}
			round := 0
			// With others, somebody else holds the third lock.
			begin := func(others bool) {
				t.Helper()
				round++
				for i := range n {
					locks[i] = NewLock(site, namesOf(t, fmt.Sprintf("lock %d of %d", i, round)))
					ids[i] = fmt.Sprintf("%s:%d", uuid, 100*round+i)
				}
				if others {
					verdict(t, locks[2], entry(redistest.HoldID("another:1")), Granted)
				}
				sent.all = nil
			}
			enter := func() []Result[Entered] {
				var all []Request[Entered]
				for i, l := range locks {
					e := entry(ids[i])
					e.Lease = time.Duration(i+1) * time.Minute
					all = append(all, l.Enter(e))
				}
				return together(site, all)
			}
			renew := func() []Result[Kept] {
				var all []Request[Kept]
				for i, l := range locks {
					all = append(all, l.Renew(ids[i], time.Duration(i+10)*time.Minute))
				}
				return together(site, all)
			}
			release := func() []Result[Kept] {
				var all []Request[Kept]
				for i, l := range locks {
					all = append(all, l.Release(ids[i], 0))
				}
				return together(site, all)
			}
			// holds checks who holds each lock, and for how long.
			holds := func(what string, minutes int, without ...int) {
				t.Helper()
				for i, l := range locks {
					key := l.names.Lock
					fields, left := rdb.HGetAll(bg, key).Val(), rdb.PTTL(bg, key).Val()
					if slices.Contains(without, i) {
						if fields[ids[i]] != "" {
							t.Errorf("after %s: lock %d is held: %v", what, i, fields)
						}
						continue
					}
					lease := time.Duration(i+minutes) * time.Minute
					if fields[ids[i]] != "1" || len(fields) != 1 || left > lease || left < lease-time.Minute+time.Millisecond {
						t.Errorf("after %s: lock %d has %v, with %v left of %v", what, i, fields, left, lease)
					}
				}
			}
			wants := func(what string, kept []Result[Kept], which func(i int) Kept) {
				t.Helper()
				for i, r := range kept {
					if r.Err != nil || r.Outcome != which(i) {
						t.Errorf("%s: lock %d: %+v, want %v", what, i, r, which(i))
					}
				}
			}
			done := func(int) Kept { return Done }

			for range 2 { // the second time with scripts that the server knows
				begin(false)
				enter()
				renew()
				release()
				release()
			}

			begin(false)
			for i, r := range enter() {
				if r.Err != nil || r.Outcome.Verdict != Granted || r.Outcome.Token <= 0 {
					t.Errorf("lock %d: %+v", i, r)
				}
			}
			sent.want("enter", "lock/enter_many")
			holds("enter", 1)
			wants("renew", renew(), done)
			sent.want("renew", "lock/renew_many")
			holds("renew", 10)
			wants("release", release(), done)
			sent.want("release", "lock/release_many")
			holds("release", 0, 0, 1, 2, 3, 4)

			// A lock that another holds is no reason to send anything by itself, but for the release,
			// whose copy may have run.
			begin(true)
			for i, r := range enter() {
				if want := i != 2; r.Err != nil || (r.Outcome.Verdict == Granted) != want || !want && r.Outcome.Holder != redistest.HoldID("another:1") {
					t.Errorf("lock %d: %+v", i, r)
				}
			}
			sent.want("enter beside another", "lock/enter_many")
			holds("enter beside another", 1, 2)
			lost := func(i int) Kept {
				if i == 2 {
					return TakenOver
				}
				return Done
			}
			wants("renew beside another", renew(), lost)
			sent.want("renew beside another", "lock/renew_many")
			holds("renew beside another", 10, 2)
			wants("release beside another", release(), lost)
			sent.want("release beside another", "lock/release_many", "lock/release "+locks[2].names.Lock)
			holds("release beside another", 0, 0, 1, 2, 3, 4)
			if got := rdb.HGetAll(bg, locks[2].names.Lock).Val(); got[redistest.HoldID("another:1")] != "1" || len(got) != 1 {
				t.Errorf("what another has is %v", got)
			}
		})
	}
}

// sentScripts notes the scripts that are sent, and of those for one request the first key.
type sentScripts struct {
	t     *testing.T
	names map[any]string // by their hashes and texts
	all   []string
}

func (h *sentScripts) want(what string, all ...string) {
	h.t.Helper()
	if !slices.Equal(h.all, all) {
		h.t.Errorf("%s: %q were sent, want %q", what, h.all, all)
	}
	h.all = nil
}

func (h *sentScripts) note(cmd redis.Cmder) {
	name, ok := h.names[cmd.Args()[min(1, len(cmd.Args())-1)]]
	switch {
	case !ok:
		return
	case !strings.HasSuffix(name, forMany):
		name = fmt.Sprint(name, " ", cmd.Args()[3])
	}
	h.all = append(h.all, name)
}

func (*sentScripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *sentScripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note(cmd)
		return next(ctx, cmd)
	}
}

func (h *sentScripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.note(cmd)
		}
		return next(ctx, cmds)
	}
}
