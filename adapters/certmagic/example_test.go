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
	storage, err := rlockcertmagic.New(client, rdb, "certmagic")
	if err != nil {
		log.Fatal(err)
	}
	certmagic.Default.Storage = storage
	log.Fatal(certmagic.HTTPS([]string{"example.com"}, http.NotFoundHandler()))
}
