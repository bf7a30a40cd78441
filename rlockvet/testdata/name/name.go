package name

import (
	"fmt"
	"strconv"
	"time"

	"github.com/go-rlock/rlock"
)

func today() string { return time.Now().Format(time.DateOnly) }

func timed(c *rlock.Client, clients []*rlock.Client) {
	c.NewLock("job:" + time.Now().String())                                // want `made from time.Now`
	c.NewFairLock(fmt.Sprintf("job:%d", time.Now().Unix()))                // want `made from time.Now`
	c.NewReadWriteLock("job:" + strconv.Itoa(int(time.Now().UnixMilli()))) // want `made from time.Now`
	now := time.Now().UTC()
	name := "job:" + now.Truncate(time.Minute).Format(time.RFC3339)
	c.NewCronJob(name)              // want `made from time.Now`
	c.NewElection(name)             // want `made from time.Now`
	rlock.NewRedLock(name, clients) // want `made from time.Now`
	year, month, _ := time.Now().Date()
	c.NewSpinLock(fmt.Sprint(year, month)) // want `made from time.Now`
}

// What follows is right, or may be.

func constant(c *rlock.Client, id string, at time.Time, shards []string) {
	c.NewLock("job")
	c.NewLock("job:" + id)
	c.NewLock("tick:" + at.Format(time.RFC3339))
	c.NewLock(shards[time.Now().Weekday()])
	c.NewOnce("report:"+today(), time.Hour)
	c.NewOnce("report:"+time.Now().Format(time.DateOnly), time.Hour)
	c.NewCountDownLatch("parts:" + time.Now().Format(time.DateOnly))
	name := "a"
	if time.Now().Hour() > 12 {
		name = "b"
	}
	c.NewLock(name)
	name += name // no end of a recursion
	c.NewLock(name)
}
