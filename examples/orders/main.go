// Command orders serves HTTP requests that change an order: one at a time for each order, whichever
// process gets them, and any number of orders side by side.
//
//	go run ./examples/orders      # brings a Redis in memory along; REDIS_URL names a real one
//	curl -X POST localhost:8080/orders/7/pay
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/examples/internal/demo"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	ln, err := net.Listen("tcp", cmp.Or(os.Getenv("ADDR"), "localhost:8080"))
	if err != nil {
		log.Fatal(err)
	}
	if err := serve(ctx, ln, pay); err != nil {
		log.Fatal(err)
	}
}

// serve serves until ctx ends and what is under way is done.
func serve(ctx context.Context, ln net.Listener, change func(ctx context.Context, id string) error) error {
	newRedis, stop, err := demo.Redis()
	if err != nil {
		return err
	}
	defer stop()
	rdb := newRedis()
	defer rdb.Close()
	client, err := rlock.New(rdb)
	if err != nil {
		return err
	}
	defer client.Close()
	server := &http.Server{Handler: handler(client, change)}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	// First no new requests. What is under way keeps its locks until it is done.
	return errors.Join(server.Shutdown(leave), client.Shutdown(leave))
}

// handler calls change for an order, under the lock of that order.
func handler(client *rlock.Client, change func(ctx context.Context, id string) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/pay", func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		// An encoding without colons and braces: no input reaches a lock of another kind.
		lock := client.NewLock("order:" + url.QueryEscape(id))
		err := rlock.Do(r.Context(), lock, func(ctx context.Context) error { return change(ctx, id) }, rlock.WithWait(2*time.Second))
		status, text := statusOf(r.Context(), err)
		if status >= 500 {
			log.Print(err)
		}
		if status == http.StatusConflict || status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(status)
		fmt.Fprintln(w, text)
	})
	return mux
}

// statusOf: who was not served because of a lock must not take that for an outage, and the reverse. And
// what a lock inside the change says is not about this one.
func statusOf(ctx context.Context, err error) (int, string) {
	switch notRun := errors.Is(err, rlock.ErrNotRun); {
	case err == nil, !notRun && errors.Is(err, rlock.ErrUnconfirmed): // the lock is free a little later
		return http.StatusOK, "done"
	case notRun && errors.Is(err, rlock.ErrNotAcquired):
		return http.StatusConflict, "another request changes this order"
	case notRun && ctx.Err() == nil: // ErrUnreachable, ErrRefused or ErrClosed
		return http.StatusServiceUnavailable, "no lock can be had"
	case errors.Is(err, rlock.ErrLeaseLost): // the change may have been made, or half of it
		return http.StatusInternalServerError, "it is not known whether the order was changed"
	case ctx.Err() != nil:
		return 499, "the caller has gone away"
	}
	return http.StatusInternalServerError, "not changed"
}

func pay(ctx context.Context, id string) error {
	select {
	case <-time.After(500 * time.Millisecond): // the work
		return nil
	case <-ctx.Done(): // the caller has gone away, or the lock is lost
		return ctx.Err()
	}
}
