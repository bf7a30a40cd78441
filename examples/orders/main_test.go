package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/loopback"
	"github.com/go-rlock/rlock/rlocktest"
)

func post(h http.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
	text, _ := io.ReadAll(w.Result().Body)
	return w.Code, string(text)
}

// Two processes, many requests: those of one order follow each other, those of two meet.
func TestRequestsOfOneOrderFollowEachOther(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	var inside [2]atomic.Int32
	met := make(chan string)
	change := func(ctx context.Context, id string) error {
		if n := inside[id[0]-'0'].Add(1); n != 1 {
			t.Errorf("%d requests change order %s", n, id)
		}
		defer inside[id[0]-'0'].Add(-1)
		select { // each meets one of the other order
		case met <- id:
		case other := <-met:
			if other == id {
				t.Errorf("two requests of order %s have met", id)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	}
	handlers := []http.Handler{handler(srv.Client(), change), handler(srv.NewClient(), change)}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			path := []string{"/orders/0/pay", "/orders/1/pay"}[i%2]
			// One that waits too long is told so, and comes again.
			for {
				code, text := post(handlers[i/2%2], path)
				if code == http.StatusOK {
					return
				}
				if code != http.StatusConflict {
					t.Errorf("%d %s", code, text)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestStatusSaysWhatHappened(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(srv *rlocktest.Server) func(context.Context, string) error
		before func(srv *rlocktest.Server)
		want   int
	}{
		{"free", nil, nil, http.StatusOK},
		{"held by another process", nil, func(srv *rlocktest.Server) { srv.Steal("order:7") }, http.StatusConflict},
		{"Redis refuses", nil, func(srv *rlocktest.Server) { srv.Fail("NOPERM no permissions") }, http.StatusServiceUnavailable},
		{"the client is closed", nil, func(srv *rlocktest.Server) { _ = srv.Client().Close() }, http.StatusServiceUnavailable},
		{"lost", func(srv *rlocktest.Server) func(context.Context, string) error {
			return func(ctx context.Context, _ string) error {
				srv.Remove("order:7")
				return ctx.Err()
			}
		}, nil, http.StatusInternalServerError},
		{"fails", func(*rlocktest.Server) func(context.Context, string) error {
			return func(context.Context, string) error { return io.ErrUnexpectedEOF }
		}, nil, http.StatusInternalServerError},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := rlocktest.New(t)
			if c.before != nil {
				c.before(srv)
			}
			change := func(context.Context, string) error { return nil }
			if c.change != nil {
				change = c.change(srv)
			}
			if code, text := post(handler(srv.Client(), change), "/orders/7/pay"); code != c.want {
				t.Errorf("%d %s; want %d", code, text, c.want)
			}
		})
	}
}

// An id that looks like a key beside another lock is an order like any other.
func TestAnyIDIsALockOfItsOwn(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	var held []string
	h := handler(srv.Client(), func(ctx context.Context, id string) error {
		lease, ok := rlock.LeaseFrom(ctx)
		if !ok {
			t.Error("no lease")
		}
		held = append(held, lease.Name())
		return nil
	})
	for _, path := range []string{"/orders/%7B7%7D:timeout/pay", "/orders/7/pay", "/orders/a:b%2Fc/pay"} {
		if code, text := post(h, path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	want := []string{"order:%7B7%7D%3Atimeout", "order:7", "order:a%3Ab%2Fc"}
	for i := range want {
		if i >= len(held) || held[i] != want[i] {
			t.Fatalf("%q; want %q", held, want)
		}
	}
}

// A caller that goes away ends its own request only.
func TestCallerThatGoesAwayFreesTheOrder(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	h := handler(srv.Client(), func(ctx context.Context, _ string) error {
		cancel() // of the first request
		return ctx.Err()
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/7/pay", nil).WithContext(ctx))
	if w.Code != 499 {
		t.Errorf("%d; want 499", w.Code)
	}
	if code, text := post(h, "/orders/7/pay"); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
}

// A deploy: the request that is under way is answered, and the program ends.
func TestProgramEndsWhenItsRequestsAreDone(t *testing.T) {
	t.Parallel()
	ln, err := loopback.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, ln, func(context.Context, string) error {
			stop() // the signal comes while the order is paid
			return nil
		})
	}()
	answer, err := http.Post("http://"+ln.Addr().String()+"/orders/7/pay", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if err := <-ended; err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("%d, %v", answer.StatusCode, err)
	}
}
