//go:build js && wasm

// Playground is the program of the page on which readers break the library: it connects package world to the page's
// script, which draws the events. See build.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"syscall/js"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/go-rlock/rlock/playground/world"
)

// stage has the world that the page shows now. Its fields belong to the goroutine that performs the page's wishes: a
// function that the page calls must not wait.
type stage struct {
	world  *world.World
	visit  int                // number of the world; the page ignores events of earlier ones
	cancel context.CancelFunc // ends the scenario
	wishes chan func()
}

func main() {
	redis.SetLogger(&logging.VoidLogger{}) // it reports each dial into a network that is cut
	s := &stage{wishes: make(chan func(), 100), cancel: func() {}}
	js.Global().Set("playground", map[string]any{
		"scenarios": scenarios(),
		"open":      s.wish(s.open),
		"act":       s.wish(s.act),
		"status":    js.FuncOf(func(js.Value, []js.Value) any { return s.status() }),
	})
	for wish := range s.wishes {
		wish()
	}
}

// wish returns a function of the page whose work is done in turn.
func (s *stage) wish(do func(args []js.Value)) js.Func {
	return js.FuncOf(func(_ js.Value, args []js.Value) any {
		s.wishes <- func() { do(args) }
		return nil
	})
}

func scenarios() string {
	type shown struct {
		Name, Title, Story string
		Claims             []string
	}
	var all []shown
	for _, s := range world.Scenarios {
		one := shown{Name: s.Name, Title: s.Title, Story: s.Story}
		for _, v := range s.Judge(nil) {
			one.Claims = append(one.Claims, v.Text)
		}
		all = append(all, one)
	}
	return text(all)
}

// open makes a new world, with the number args[0], plays the scenario args[1] in it, if there is one, and sends what
// happens to the function args[2] of the page.
func (s *stage) open(args []js.Value) {
	s.cancel()
	if s.world != nil {
		go s.world.Close()
	}
	visit, receive := args[0], args[2]
	send := func(kind string, what any) { receive.Invoke(visit, kind, text(what)) }
	w, err := world.New(func(e world.Event) { send("event", e) })
	if err != nil {
		send("failed", err.Error())
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.world, s.visit, s.cancel = w, visit.Int(), cancel
	if scenario, ok := world.Find(args[1].String()); ok {
		go func() {
			switch verdicts, err := scenario.Play(ctx, w); {
			case err == nil:
				send("verdicts", verdicts)
			case errors.Is(err, context.Canceled):
				send("interrupted", nil)
			default:
				send("failed", err.Error())
			}
		}()
	}
}

// pause is longer than a lease.
const pause = world.Lease + 3*time.Second

// act does what a button says. A scenario ends there: its claims are about what happens without the reader.
func (s *stage) act(args []js.Value) {
	if s.world == nil {
		return
	}
	s.cancel()
	switch what := args[0].String(); what {
	case "lose-data":
		s.world.LoseData()
	case "fence":
		_, _, on := s.world.Register.State()
		s.world.SetFence(!on)
	default:
		if c := s.world.Client(args[1].String()); c != nil {
			actOf(c, what)
		}
	}
}

func actOf(c *world.Client, what string) {
	switch what {
	case "lock":
		c.Lock()
	case "unlock":
		c.Unlock()
	case "pause":
		c.Pause(pause)
	case "cut":
		c.Cut()
	case "heal":
		c.Heal()
	case "lose-reply":
		c.LoseReply()
	case "kill":
		c.Kill()
	case "start":
		_ = c.Start() // it fails for options that are wrong, and these have worked before
	}
}

// status returns what the page shows between events.
func (s *stage) status() any {
	w := s.world
	if w == nil {
		return nil
	}
	clients := map[string]world.Status{}
	for _, name := range world.Names {
		clients[name] = w.Client(name).Status()
	}
	value, updates, on := w.Register.State()
	return text(map[string]any{
		"visit": s.visit, "age": w.Age(), "clients": clients, "value": value, "updates": updates, "fence": on,
	})
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
