package rlockcertmagic_test

import (
	"log"
	"net/http"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	rlockcertmagic "github.com/go-rlock/rlock/adapters/certmagic"
)

func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	client, err := rlock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	// A *rlock.Client, and the go-redis client that it has.
	storage, err := rlockcertmagic.New(client, rdb, "certmagic")
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	certmagic.Default.Storage = storage
	err = certmagic.HTTPS([]string{"example.com"}, mux)
	log.Fatal(err)
}
