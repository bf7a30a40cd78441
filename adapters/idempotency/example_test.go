package idempotency_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/idempotency"
)

var locks *rlock.Client // rlock.New(rdb)

func ExampleNew() {
	idempotent, err := idempotency.New(locks, func(r *http.Request) string {
		account, _, _ := r.BasicAuth() // what was authenticated
		return account
	}, idempotency.WithReport(func(r *http.Request, err error) { log.Print(r.URL.Path, ": ", err) }))
	if err != nil {
		log.Fatal(err)
	}
	createOrder := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintln(w, "order 1")
	})
	mux := http.NewServeMux()
	mux.Handle("POST /orders", idempotent(createOrder))
	log.Fatal(http.ListenAndServe("localhost:8080", mux))
}
