package rlockui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlockui"
)

var bg = context.Background()

const interval = 100 * time.Millisecond

// site is pages that are served under a prefix.
type site struct {
	*httptest.Server
	t     testing.TB
	pages *rlockui.UI
	rdb   redis.UniversalClient
}

const prefix = "/debug/locks/"

// open serves pages of a client of a backend.
func open(t testing.TB, b *locktest.Backend, opts rlockui.Options, options ...rlock.Option) *site {
	t.Helper()
	s := &site{t: t, rdb: b.Client(t)}
	if opts.Interval == 0 {
		opts.Interval = interval
	}
	if opts.Redis == nil {
		opts.Redis = s.rdb
	}
	s.pages = pagesOf(t, b.NewClient(t, options...), opts)
	mux := http.NewServeMux()
	mux.Handle(prefix, s.pages)
	s.serve(mux)
	return s
}

func pagesOf(t testing.TB, c *rlock.Client, opts rlockui.Options) *rlockui.UI {
	t.Helper()
	pages, err := rlockui.Handler(c, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pages.Close() })
	return pages
}

func (s *site) serve(h http.Handler) {
	s.Server = httptest.NewServer(h)
	s.t.Cleanup(func() {
		_ = s.pages.Close() // ends the streams
		s.Server.Close()
	})
}

// ask sends a request, and returns the answer with its body.
func (s *site) ask(method, path, body string, header ...string) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	client := *s.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer, string(text)
}

// view is the part of a snapshot that tests read.
type view struct {
	Error      string
	GraphError string
	Writes     bool
	Truncated  bool
	Held       int
	Matched    int
	Lost       int
	HandOvers  int
	Locks      []row
	Lock       *struct {
		row
		Known  bool
		CanEnd bool
		Events []struct{ Kind, Text string }
	}
	Clients []struct {
		Client, Who, State string
		Holds, Waits       int
	}
	Waits  []step
	Cycles []struct{ Steps []step }
	Nodes  []struct {
		Name, Error string
	}
}

type step struct{ Waiter, Lock, Holder string }

type row struct {
	ID, Name, Type, Mode, Token string
	Waiters, Votes, Lost        int
	SinceExact, Overdue, Gone   bool
	Ends                        int64
	Holders                     []struct{ Who, Hold, Ref string }
}

func (s *site) snapshot(query string) (v view) {
	s.t.Helper()
	answer, text := s.ask("GET", prefix+"snapshot.json"+query, "")
	if answer.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s", answer.Status, text)
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		s.t.Fatalf("%v: %.300s", err, text)
	}
	return v
}

// lock returns a lock of a snapshot, or nil.
func (v *view) lock(name string) *row {
	for i := range v.Locks {
		if v.Locks[i].Name == name {
			return &v.Locks[i]
		}
	}
	return nil
}

// until takes snapshots until one fits.
func (s *site) until(what, query string, ok func(v *view) bool) (v view) {
	s.t.Helper()
	locktest.Eventually(s.t, what, func() bool {
		v = s.snapshot(query)
		return ok(&v)
	})
	return v
}

// held waits until a lock is shown.
func (s *site) held(name string) row {
	s.t.Helper()
	v := s.until(name+" is shown", "", func(v *view) bool { return v.lock(name) != nil })
	return *v.lock(name)
}

// stream is an open stream of events.
type stream struct {
	events chan view
	close  func() // ends the stream, and waits for its reader
}

func (s *site) stream(query string) *stream {
	s.t.Helper()
	ctx, cancel := context.WithCancel(bg)
	r, err := http.NewRequestWithContext(ctx, "GET", s.URL+prefix+"events"+query, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := s.Client().Do(r)
	if err != nil {
		cancel()
		s.t.Fatal(err)
	}
	if kind := answer.Header.Get("Content-Type"); kind != "text/event-stream" {
		s.t.Errorf("%s, %s", answer.Status, kind)
	}
	st := &stream{events: make(chan view)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(st.events)
		defer answer.Body.Close()
		lines := bufio.NewReader(answer.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			text, is := strings.CutPrefix(line, "data: ")
			if !is {
				continue
			}
			var v view
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				s.t.Errorf("%v: %.300s", err, text)
				return
			}
			select {
			case st.events <- v:
			case <-ctx.Done():
				return
			}
		}
	}()
	st.close = func() { cancel(); <-done }
	s.t.Cleanup(st.close)
	return st
}

// next returns the next event.
func (st *stream) next(t testing.TB) view {
	t.Helper()
	select {
	case v, open := <-st.events:
		if !open {
			t.Fatal("the stream has ended")
		}
		return v
	case <-time.After(locktest.Patience):
		t.Fatal("waited too long for an event")
	}
	return view{}
}
