package wire

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// PublishMode says how to publish.
type PublishMode string

const (
	PublishAuto    PublishMode = "auto"    // the server is asked what it is
	PublishPlain   PublishMode = "plain"   // PUBLISH
	PublishSharded PublishMode = "sharded" // SPUBLISH
	PublishBoth    PublishMode = "both"
)

// PublishCommand is how scripts publish: "publish", "spublish" or "both". Until Ready has
// succeeded it is a guess, which may be none ("").
func (d *Deployment) PublishCommand() string {
	command, known := d.publishCommand()
	if _, server := d.rdb.(*redis.Client); server && !known {
		return "publish"
	}
	return command
}

// PublishKnown reports whether PublishCommand is known, not a guess.
func (d *Deployment) PublishKnown() bool {
	_, known := d.publishCommand()
	return known
}

func (d *Deployment) publishCommand() (command string, known bool) {
	switch d.cfg.Publish {
	case PublishBoth:
		return "both", true
	case PublishSharded:
		return "spublish", true
	case PublishPlain:
		return "publish", true
	}
	command, known = d.mode.Load().(string)
	return command, known
}

// Ready finds out how to publish, if that is not known yet. It is called before the first
// acquire, so that every release knows.
//
// In auto mode the server says what it is. The type of the go-redis client does not tell:
// a *redis.ClusterClient may lead to a Sentinel deployment, and a wrapper of any kind to a
// cluster. HELLO needs no permission.
//
// Callers that come together share the answer to one request, and its error: ten thousand of
// them would otherwise wait for as many answers before the first lock is asked for. Only the end
// of the context of the one that asks is not shared: then another one asks.
func (d *Deployment) Ready(ctx context.Context) error {
	for !d.PublishKnown() {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, seat := d.greeting()
		if seat == 0 {
			return d.greet(ctx, h)
		}
		select {
		case <-h.done:
			if h.err != nil && !h.left {
				return h.err
			}
		case <-ctx.Done():
		}
		if d.cfg.Gate != nil {
			d.gate("ready " + strconv.Itoa(seat)) // all in the same instant otherwise
		}
	}
	return nil
}

// greeting is a HELLO under way.
type greeting struct {
	done  chan struct{}
	seats int // how many wait for it; guarded by Deployment.helloMu
	// Once done is closed:
	err  error
	left bool // the context of the one that asked has ended
}

// greeting returns the HELLO that is under way, or one that the caller is to send: then it is
// the first of those that share it, with the seat 0.
func (d *Deployment) greeting() (h *greeting, seat int) {
	d.helloMu.Lock()
	defer d.helloMu.Unlock()
	if d.hello == nil {
		d.hello = &greeting{done: make(chan struct{})}
		return d.hello, 0
	}
	d.hello.seats++
	return d.hello, d.hello.seats
}

// greet sends a HELLO. Those that share it go on whatever happens here.
func (d *Deployment) greet(ctx context.Context, h *greeting) (err error) {
	defer func() {
		d.helloMu.Lock()
		h.err, h.left = err, ctx.Err() != nil
		if !d.PublishKnown() { // otherwise a caller that has just found it unknown would ask again
			d.hello = nil
		}
		d.helloMu.Unlock()
		close(h.done)
	}()
	a := d.Do(ctx, d.cfg.CommandTimeout, &Request{Args: []any{"hello"}})
	command, err := readHello(a)
	if err == nil {
		d.mode.Store(command)
	}
	return err
}

// readHello reads how to publish from the answer to HELLO. The result is "both" if the
// server does not say what it is: other clients may then use either way.
func readHello(a Answer) (command string, err error) {
	switch {
	case a.Err == nil:
	case !IsReply(a.Err):
		return "", a.Err // no answer
	case redis.HasErrorPrefix(a.Err, "unknown command"),
		redis.HasErrorPrefix(a.Err, "wrong number of arguments"):
		// HELLO without arguments came with Redis 6.2, sharded channels with 7.0.
		return "publish", nil
	default:
		return "both", nil
	}
	hello := fields(a.Val)
	version, _ := hello["version"].(string)
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	switch mode := hello["mode"]; {
	case mode == "standalone" || mode == "sentinel":
		return "publish", nil
	case mode != "cluster" || err != nil:
		return "both", nil
	case n < 7:
		return "publish", nil
	}
	return "spublish", nil
}
