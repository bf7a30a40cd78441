// Package demo gives the examples a Redis.
package demo

import (
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Redis returns a way to make clients of the Redis of REDIS_URL or, without one, of a Redis in memory,
// which lasts until stop. Your program has one redis.NewClient instead.
func Redis() (newClient func() *redis.Client, stop func(), err error) {
	stop = func() {}
	url := os.Getenv("REDIS_URL")
	if url == "" {
		mini, err := miniredis.Run()
		if err != nil {
			return nil, nil, err
		}
		mini.ClockTTL(true)
		url, stop = "redis://"+mini.Addr(), mini.Close
	}
	opts, err := redis.ParseURL(url)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return func() *redis.Client { return redis.NewClient(opts) }, stop, nil
}
