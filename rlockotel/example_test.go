package rlockotel_test

import (
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlockotel"
)

func ExampleNew() {
	// With the global providers; see WithMeterProvider and WithTracerProvider.
	observer, err := rlockotel.New()
	if err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	client, err := rlock.New(rdb, rlock.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
}
