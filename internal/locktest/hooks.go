package locktest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// CountHook counts commands about locks, those in pipelines too, and how many of the calls have not
// returned.
type CountHook struct{ N, UnderWay atomic.Int64 }

func (h *CountHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *CountHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.UnderWay.Add(1)
		defer h.UnderWay.Add(-1)
		h.N.Add(ofLocks(cmd))
		return next(ctx, cmd)
	}
}

func (h *CountHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.UnderWay.Add(1)
		defer h.UnderWay.Add(-1)
		h.N.Add(ofLocks(cmds...))
		return next(ctx, cmds)
	}
}

// ofLocks is how many of some commands are about locks. The introduction of a client is not: it comes
// whenever there is time. Nor are HELLO and CLIENT of a new connection: a busy machine may need one more.
func ofLocks(cmds ...redis.Cmder) (n int64) {
	for _, cmd := range cmds {
		if cmd.Name() == "hello" || cmd.Name() == "client" {
			continue
		}
		if args := cmd.Args(); len(args) < 2 || !IsClient(fmt.Sprint(args[1])) {
			n++
		}
	}
	return n
}

// ScriptHook is a go-redis hook that lets a test lose or delay commands.
type ScriptHook struct {
	One  func(cmd redis.Cmder, next func() error) error
	Pipe func(cmds []redis.Cmder, next func() error) error
}

func (h *ScriptHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *ScriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.One == nil {
			return next(ctx, cmd)
		}
		return h.One(cmd, func() error { return next(ctx, cmd) })
	}
}

func (h *ScriptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.Pipe == nil {
			return next(ctx, cmds)
		}
		return h.Pipe(cmds, func() error { return next(ctx, cmds) })
	}
}

// forCallers are the scripts that are sent for callers, who wait for the answer.
var forCallers = []string{
	"lock/enter", "lock/stand_by", "lock/reenter", "lock/release", "lock/release_next", "fair/enter", "fair/release", "queue/enter", "queue/reenter", "queue/release",
	"rw/read_enter", "rw/read_reenter", "rw/read_release", "rw/write_enter", "rw/write_reenter", "rw/write_release",
}

// RunsForCallers reports whether a command runs a script for several callers by its hash.
func RunsForCallers(cmd redis.Cmder) bool {
	return Runs(cmd, "lock/enter_many") || Runs(cmd, "lock/release_many")
}

// RunsForCaller reports whether a command runs such a script by its hash.
func RunsForCaller(cmd redis.Cmder) bool {
	return slices.ContainsFunc(forCallers, func(script string) bool { return Runs(cmd, script) })
}

// Runs reports whether a command runs a script by its hash.
func Runs(cmd redis.Cmder, script string) bool {
	return cmd.Name() == "evalsha" && cmd.Args()[1] == SHA(script)
}
