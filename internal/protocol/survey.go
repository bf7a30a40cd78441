package protocol

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/wire"
)

// Survey is the report of one server about itself. Each part has the error with which the server refused it.
type Survey struct {
	Server, Version, Role string
	Cluster               bool
	HelloErr              error

	Clock    time.Duration // how far the server's clock is ahead of the client's
	Fuzz     time.Duration // largest error of Clock
	ClockErr error

	MaxMemory, Policy string
	MemoryErr         error

	Replicas    int64
	ReplicasErr error

	User string // "" if the server refused to name the user

	Denied      []Denied
	DeniedErr   error
	DeniedKnown bool // Denied is known
}

// Survey requests the report of one server. wants returns the commands that the user wants to send. If the client requires
// acknowledgments, replicas are counted.
func (s *Site) Survey(ctx context.Context, d *wire.Deployment, node redis.UniversalClient, within time.Duration, wants func(cluster bool) []Wanted) (Survey, error) {
	return wire.Within(ctx, d, within, func(ctx context.Context) (v Survey, err error) {
		hello := node.Do(ctx, "hello")
		if _, v.HelloErr = hello.Result(); v.HelloErr != nil && !wire.IsReply(v.HelloErr) {
			return v, v.HelloErr
		}
		fields := wire.Fields(hello.Val())
		v.Server, _ = fields["server"].(string)
		v.Version, _ = fields["version"].(string)
		v.Role, _ = fields["role"].(string)
		v.Cluster = fields["mode"] == "cluster"

		all := wants(v.Cluster)
		sent := d.Clock().Now()
		now, err := node.Time(ctx).Result()
		replied := d.Clock().Now()
		if v.ClockErr = err; err == nil {
			v.Fuzz = replied.Sub(sent) / 2
			v.Clock = now.Sub(sent.Add(v.Fuzz))
		} else if !wire.IsReply(err) {
			return v, err
		}

		pipe := node.Pipeline()
		memory := pipe.Do(ctx, "info", "memory")
		config := pipe.Do(ctx, "config", "get", "maxmemory*")
		user := pipe.Do(ctx, "acl", "whoami")
		script := s.Scripts["lock/permitted"]
		permitted := pipe.Do(ctx, append([]any{"eval", script.Text(), 0}, Args(all)...)...)
		var wait *redis.Cmd
		if n, ms := d.Acks(); n > 0 {
			wait = pipe.Do(ctx, "wait", n, ms.Milliseconds())
		}
		_, err = pipe.Exec(ctx)
		if err != nil && !wire.IsReply(err) {
			return v, err
		}
		v.User, _ = user.Val().(string)
		v.readMemory(memory, config)
		if wait != nil {
			v.Replicas, v.ReplicasErr = wait.Int64()
		}
		switch err := permitted.Err(); {
		case err == redis.Nil:
		case err != nil:
			v.DeniedErr = err
		default:
			v.DeniedKnown = true
			v.Denied, v.DeniedErr = Deny(all, permitted.Val())
		}
		return v, nil
	})
}

// readMemory reads the limit of the memory from INFO, or else from CONFIG GET.
func (v *Survey) readMemory(info, config *redis.Cmd) {
	text, _ := info.Val().(string)
	for line := range strings.Lines(text) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ":"); key {
		case "maxmemory":
			v.MaxMemory = value
		case "maxmemory_policy":
			v.Policy = value
		}
	}
	if v.Policy == "" {
		all := wire.Fields(config.Val())
		v.MaxMemory, _ = all["maxmemory"].(string)
		v.Policy, _ = all["maxmemory-policy"].(string)
	}
	if v.Policy == "" {
		if v.MemoryErr = info.Err(); v.MemoryErr == nil {
			v.MemoryErr = fmt.Errorf("INFO does not tell")
		}
	}
}

// Evicts reports whether the server may remove keys before their time.
func (v *Survey) Evicts() bool {
	return v.Policy != "" && v.Policy != "noeviction" && v.MaxMemory != "0" && v.MaxMemory != ""
}

// TooOld reports whether the server is older than Redis 6.2.
func (v *Survey) TooOld() bool {
	if v.Server != "redis" && v.Server != "valkey" {
		return false
	}
	parts := strings.SplitN(v.Version+".0.0", ".", 3)
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (major < 6 || major == 6 && minor < 2)
}
