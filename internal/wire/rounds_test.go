package wire

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A round to a server far away is sent as several pipelines in parallel, and each request is answered once. To a near
// server, one pipeline is sent after the other.
func TestPipelinesOfARound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		away time.Duration
		want int64 // pipelines that are under way at a time
	}{
		"far":  {far, farRounds},
		"near": {far - 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _ := behindFor(t, longestIO)
			for _, s := range []*sender{&d.senders.one, &d.senders.renewals} {
				s.away = distance{since: time.Now().Add(time.Hour), now: c.away} // so that later replies do not change the distance
			}
			var underWay, most atomic.Int64
			var met sync.Once
			all := make(chan struct{}) // closed when c.want pipelines are under way
			d.rdb.AddHook(sideBySide(func(next func()) {
				n := underWay.Add(1)
				defer underWay.Add(-1)
				for had := most.Load(); n > had && !most.CompareAndSwap(had, n); had = most.Load() {
				}
				if n == c.want {
					met.Do(func() { close(all) })
				}
				select {
				case <-all:
				case <-time.After(20 * time.Second):
				}
				next()
			}))
			const n = 4*RoundSize + 7
			var answered [n]atomic.Int64
			round := d.NewRound(n)
			for i := range n {
				round.Add(echoOf(fmt.Sprint(i)), func(_ time.Time, a Answer) {
					if answered[i].Add(1); a.Err != nil || a.Val != fmt.Sprint(i) {
						t.Errorf("%d: %+v", i, a)
					}
				})
			}
			round.Send(func(redis.UniversalClient, []Answer) {})
			for i := range answered {
				if got := answered[i].Load(); got != 1 {
					t.Errorf("%d was answered %d times", i, got)
				}
			}
			if most.Load() != c.want {
				t.Errorf("%d pipelines at a time, want %d", most.Load(), c.want)
			}
		})
	}
}

// Each reply that is read late may cost a lease of some seconds: when replies are known to be late, the rest of a round is
// sent as one pipeline.
func TestPipelinesOfALateRound(t *testing.T) {
	t.Parallel()
	const n = 4*RoundSize + 7
	for name, c := range map[string]struct {
		busy   bool
		latest time.Duration // how long the latest pipeline took
		first  time.Duration // how long the first pipeline of this round takes
		want   int64         // pipelines
	}{
		"this process is busy":   {busy: true, want: 1},
		"answers are late":       {latest: lateAfter + 1, want: 1},
		"the first answer is it": {first: lateAfter + lateAfter/2, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _ := behindFor(t, longestIO)
			d.cfg.CommandTimeout = time.Minute // a busy machine takes a second for hundreds of scripts
			for _, s := range []*sender{&d.senders.one, &d.senders.renewals} {
				s.away = distance{since: time.Now().Add(time.Hour), now: 1} // near
			}
			d.senders.renewals.latest = c.latest
			if a := d.Do(bg, time.Minute, echoOf("known")); a.Err != nil { // an unknown script would be sent again
				t.Fatal(a.Err)
			}
			var sent, answered atomic.Int64
			d.rdb.AddHook(sideBySide(func(next func()) {
				if sent.Add(1) == 1 {
					time.Sleep(c.first) // the reply is late
				}
				next()
			}))
			round := d.NewRound(n)
			if c.busy {
				round.Busy()
			}
			for i := range n {
				round.Add(echoOf(fmt.Sprint(i)), func(_ time.Time, a Answer) {
					if answered.Add(1); a.Err != nil || a.Val != fmt.Sprint(i) {
						t.Errorf("%d: %+v", i, a)
					}
				})
			}
			round.Send(func(redis.UniversalClient, []Answer) {})
			if sent.Load() != c.want || answered.Load() != n {
				t.Errorf("%d pipelines, want %d; %d answers of %d", sent.Load(), c.want, answered.Load(), n)
			}
		})
	}
}

// sideBySide is a hook for each pipeline of scripts, but not for the pipeline with which a new connection begins.
type sideBySide func(next func())

func (sideBySide) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (sideBySide) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h sideBySide) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		if !strings.HasPrefix(cmds[0].Name(), "eval") {
			return next(ctx, cmds)
		}
		h(func() { err = next(ctx, cmds) })
		return err
	}
}
