package rlockui_test

import (
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlockui"
)

// isOperator reports who may free locks: the session of the program knows.
func isOperator(r *http.Request) bool { return r.Header.Get("X-Role") == "operator" }

// loggedIn is the middleware of the program.
func loggedIn(next http.Handler) http.Handler { return next }

var (
	rdb    redis.UniversalClient
	client *rlock.Client // rlock.New(rdb)
	mux    = http.NewServeMux()
)

func ExampleHandler() {
	pages, err := rlockui.Handler(client, rlockui.Options{Redis: rdb})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()
	mux.Handle("/debug/locks/", loggedIn(pages))
}

func ExampleHandler_writes() {
	pages, err := rlockui.Handler(client, rlockui.Options{
		Redis: rdb,
		Allow: func(r *http.Request, w rlockui.Write) bool {
			log.Printf("%s of %q, hold %q", w.Action, w.Lock, w.HoldID)
			return isOperator(r)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux.Handle("/debug/locks/", loggedIn(pages))
	srv := &http.Server{Addr: "localhost:8080", Handler: mux}
	// Shutdown waits for the streams: Close ends them.
	srv.RegisterOnShutdown(func() { pages.Close() })
	log.Print(srv.ListenAndServe())
}
