package idempotency_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/idempotency"
)

var (
	rdb   redis.UniversalClient
	locks *rlock.Client // rlock.New(rdb)
)

var sessions = map[string]string{} // accounts

// account returns who has logged in.
func account(r *http.Request) (string, error) {
	cookie, err := r.Cookie("session")
	if err != nil {
		return "", &idempotency.Refusal{
			Status: http.StatusUnauthorized,
			Detail: "Log in.",
		}
	}
	id, ok := sessions[cookie.Value]
	if !ok {
		return "", &idempotency.Refusal{
			Status: http.StatusForbidden,
			Detail: "The session has ended.",
		}
	}
	return id, nil
}

func ExampleNew() {
	createOrder := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintln(w, "order 1")
	})
	mux := http.NewServeMux()
	idempotent, err := idempotency.New(locks, rdb, "shop", account)
	if err != nil {
		log.Fatal(err)
	}
	mux.Handle("POST /orders", idempotent(createOrder))
	log.Fatal(http.ListenAndServe("localhost:8080", mux))
}
