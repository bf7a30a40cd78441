package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A child is this program again, with one client of one library. It takes the requests that the Java driver in interop/java
// takes: id, thread, verb, arguments, separated by tabs; a reply has the id, its outcome, and values. Some verbs are only for
// libraries in Go.

const childEnv = "RLOCK_FAULTS_CHILD"

// isChild reports whether this process is one.
func isChild() bool { return os.Getenv(childEnv) != "" }

// serve ends with the input, as the process does. The environment has the library's name, the lease in milliseconds, and the
// addresses.
func serve(in io.Reader, out io.Writer) error {
	redis.SetLogger(quiet{})
	args := strings.Split(os.Getenv(childEnv), "\t")
	ms, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	d, err := libraryNamed(args[0]).open(args[2:], time.Duration(ms)*time.Millisecond)
	if err != nil {
		return err
	}
	s := &servant{driver: d, out: out, holds: map[string]*holding{}}
	s.reply("0", "ok")
	for lines := bufio.NewScanner(in); lines.Scan(); {
		go s.obey(strings.Split(lines.Text(), "\t"))
	}
	return nil
}

type servant struct {
	driver driver

	mu    sync.Mutex // guards the rest; keeps lines whole
	out   io.Writer
	holds map[string]*holding // by thread and name
}

// holding is a lock that is held. The library's channel may be closed by its unlock too, which is no loss.
type holding struct {
	held
	released chan struct{} // closed before unlock is called
}

// obey executes: lock TYPE NAME LEASE, unlock TYPE NAME, lost TYPE NAME, which is answered when the holder is notified, and
// told TYPE NAME, which is answered immediately.
func (s *servant) obey(f []string) {
	id, verb, key := f[0], f[2], f[1]+"\t"+f[4]
	ctx := context.Background()
	s.mu.Lock()
	h := s.holds[key]
	s.mu.Unlock()
	switch verb {
	case "lock":
		l, err := s.driver.lock(ctx, f[4])
		if err == nil {
			s.mu.Lock()
			s.holds[key] = &holding{l, make(chan struct{})}
			s.mu.Unlock()
		}
		s.result(id, err)
	case "unlock":
		close(h.released)
		s.result(id, h.unlock(ctx))
	case "lost":
		select {
		case <-h.lost():
			s.reply(id, "ok")
		case <-h.released:
			s.reply(id, "no")
		}
	case "told":
		select {
		case <-h.lost():
			s.reply(id, "ok")
		default:
			s.reply(id, "no")
		}
	}
}

func (s *servant) result(id string, err error) {
	switch {
	case err == nil:
		s.reply(id, "ok")
	case errors.Is(err, errNoResult):
		s.reply(id, "ok", errNoResult.Error())
	default:
		s.reply(id, "failed", strings.NewReplacer("\n", "; ", "\t", " ").Replace(err.Error()))
	}
}

func (s *servant) reply(id, outcome string, values ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, strings.Join(append([]string{id, outcome}, values...), "\t"))
}

// quiet drops what go-redis logs of connections that the faults end.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
