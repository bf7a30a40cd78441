// Command example takes a lock each second and serves its metrics.
package main

import (
	"context"
	"log"
	"net/http"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlockprom"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
)

func main() {
	observer, err := rlockprom.New(prometheus.DefaultRegisterer)
	if err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	client, err := rlock.New(rdb, rlock.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	go work(client.NewLock("report"))

	http.Handle("/metrics", promhttp.Handler())
	log.Print(http.ListenAndServe("localhost:2112", nil))
}

func work(lock *rlock.Lock) {
	nothing := func(context.Context) error { return nil }
	for range time.Tick(time.Second) {
		err := rlock.Do(context.Background(), lock, nothing)
		if err != nil {
			log.Print(err)
		}
	}
}
