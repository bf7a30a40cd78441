// Command migrate shows a migration of a database at the start of a program: of three instances that start
// together one migrates, the others wait until it has, and all of them serve after that.
//
//	go run ./examples/migrate
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/examples/internal/demo"
)

func main() {
	newRedis, stop, err := demo.Redis()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	db := &database{}
	var instances sync.WaitGroup
	for i := range 3 { // each would be a process
		instances.Go(func() {
			rdb := newRedis()
			defer rdb.Close()
			client, err := rlock.New(rdb)
			if err != nil {
				log.Fatal(err)
			}
			defer client.Close()
			if err := migrate(context.Background(), os.Stdout, fmt.Sprint("instance ", i+1), client, db); err != nil {
				log.Fatal(err)
			}
		})
	}
	instances.Wait()
}

const wanted = 3 // the version of the schema that this program needs

// migrate returns nil when the database has the schema that is wanted, no matter which process brought it there.
func migrate(ctx context.Context, w io.Writer, who string, client *rlock.Client, db *database) error {
	// No bound but ctx: a migration takes its time, and without it there is nothing to serve.
	return rlock.Do(ctx, client.NewLock("migrate:shop"), func(ctx context.Context) error {
		lease, _ := rlock.LeaseFrom(ctx)
		for {
			// The version is in the database, not in Redis: an instance that comes later looks there.
			version := db.version()
			if version >= wanted {
				fmt.Fprintf(w, "%s serves with version %d\n", who, version)
				return nil
			}
			if err := ctx.Err(); err != nil { // the lock is lost: another instance goes on
				return err
			}
			if err := db.step(lease.Token(), version); err != nil {
				return err
			}
			fmt.Fprintf(w, "%s has migrated to version %d\n", who, version+1)
		}
	})
}

// database refuses a step by who had the lock before, and a step from another version.
type database struct {
	mu    sync.Mutex // guards the rest
	at    int
	token int64
	steps int
}

var errStale = errors.New("an instance that has the lock since has migrated")

func (d *database) version() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// step is one transaction: ALTER TABLE and the new version.
func (d *database) step(token int64, from int) error {
	time.Sleep(50 * time.Millisecond) // the work
	d.mu.Lock()
	defer d.mu.Unlock()
	if token < d.token || from != d.at {
		return errStale
	}
	d.token, d.at, d.steps = token, from+1, d.steps+1
	return nil
}
