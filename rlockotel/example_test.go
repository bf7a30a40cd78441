package rlockotel_test

import (
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlockotel"
)

func ExampleNew() {
	observer, err := rlockotel.New() // global providers; see WithMeterProvider and WithTracerProvider
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
