package rlockcertmagic

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// ErrStale: another process has had the lock of this certificate since. Nothing was written.
var ErrStale = errors.New("rlockcertmagic: a later holder of the lock has been here")

//go:embed store.lua
var storeText string

var store = redis.NewScript(storeText)

// issueLock is how certmagic names the lock under which it obtains and renews the certificate of a domain.
const issueLock = "issue_cert_"

// Storage is a certmagic.Storage in Redis, with the locks of a [Locker].
//
// Writes below certificates/ISSUER/DOMAIN are fenced by the lock "issue_cert_DOMAIN": a process that obtains a
// certificate, and was stopped for longer than its lease, cannot overwrite the certificate and key of its successor. It
// gets [ErrStale], or rlock.ErrLeaseLost. certmagic does not say under which lock it writes, so other writes, and those
// of a process that does not hold that lock, carry no token.
//
// Private keys are in Redis as certmagic writes them. Its data must not be evicted (maxmemory-policy noeviction), and
// should be persistent. All keys are in one slot of a cluster.
type Storage struct {
	*Locker
	rdb  redis.UniversalClient
	keys []string // values, times, tokens, names, raised
}

var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
)

// New returns a Storage whose keys and locks begin with the prefix, such as "certmagic". The prefix must not be empty or
// contain braces. rdb may be the client that the rlock.Client has. It sends nothing. The error matches
// rlock.ErrInvalidArgument.
func New(client *rlock.Client, rdb redis.UniversalClient, prefix string) (*Storage, error) {
	if rdb == nil {
		return nil, fmt.Errorf("rlockcertmagic: %w: the Redis client is nil", rlock.ErrInvalidArgument)
	}
	if prefix == "" || strings.ContainsAny(prefix, "{}") {
		return nil, fmt.Errorf("rlockcertmagic: %w: the prefix is %q", rlock.ErrInvalidArgument, prefix)
	}
	locker, err := NewLocker(client, prefix+":lock:")
	if err != nil {
		return nil, err
	}
	s := &Storage{Locker: locker, rdb: rdb}
	for _, what := range []string{"values", "times", "tokens", "names", "raised"} {
		s.keys = append(s.keys, "{"+prefix+"}:"+what)
	}
	return s, nil
}

func (s *Storage) String() string { return "rlockcertmagic:" + s.keys[0] }

// domainOf returns the domain of a lock of certmagic, as it is in keys; empty: no key has to do with the lock.
func domainOf(lock string) string {
	domain, ok := strings.CutPrefix(lock, issueLock)
	if !ok {
		return ""
	}
	return certmagic.StorageKeys.Safe(domain)
}

// Lock is Lock of a [Locker]. When it has the lock of a certificate, it closes the fence behind earlier holders, before
// certmagic reads what is there.
func (s *Storage) Lock(ctx context.Context, name string) error {
	lease, err := s.acquire(ctx, name, true)
	if err != nil {
		return err
	}
	return s.raise(ctx, name, lease)
}

// TryLock is TryLock of a [Locker], and closes the fence as Lock does.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	lease, err := s.try(ctx, name)
	if lease == nil {
		return false, err
	}
	err = s.raise(ctx, name, lease)
	return err == nil, err
}

func (s *Storage) raise(ctx context.Context, name string, lease *rlock.Lease) error {
	if domainOf(name) == "" {
		return nil
	}
	if err := s.write(ctx, name, lease.Token(), "raise", "", ""); err != nil {
		return errors.Join(err, s.Unlock(ctx, name))
	}
	return nil
}

// write runs the script. It may run twice: go-redis repeats a request whose answer was lost.
func (s *Storage) write(ctx context.Context, lock string, token int64, what, key, value string) error {
	seen, err := store.Run(ctx, s.rdb, s.keys, lock, token, what, key, value, domainOf(lock)).Int64()
	if err != nil {
		return err
	}
	if seen > token {
		return fmt.Errorf("%w: %s: token %d, %d was seen", ErrStale, lock, token, seen)
	}
	return nil
}

// change is write, under the token of the lock that this process holds for the key.
func (s *Storage) change(ctx context.Context, what, key, value string) error {
	key = clean(key)
	if key == "" {
		return fmt.Errorf("rlockcertmagic: %w: the key is empty", rlock.ErrInvalidArgument)
	}
	lock, token, err := s.held(key)
	if err != nil {
		return err
	}
	return s.write(ctx, lock, token, what, key, value)
}

// held returns the lock that this process holds for a key, with its token. Empty: none.
func (s *Storage) held(key string) (lock string, token int64, err error) {
	parts := strings.Split(key, "/")
	if len(parts) < 3 || parts[0] != "certificates" {
		return "", 0, nil
	}
	s.mu.Lock()
	var names []string
	for name := range s.leases {
		if domainOf(name) == parts[2] {
			names = append(names, name)
		}
	}
	s.mu.Unlock()
	for _, name := range names {
		token, err := s.token(name)
		if err != nil || token > 0 {
			return name, token, err
		}
	}
	return "", 0, nil
}

func clean(key string) string { return strings.Trim(key, "/") }

// Store writes a value.
func (s *Storage) Store(ctx context.Context, key string, value []byte) error {
	return s.change(ctx, "store", key, string(value))
}

// Delete deletes a key, or all keys below it. A key that is not there is no error.
func (s *Storage) Delete(ctx context.Context, key string) error {
	return s.change(ctx, "delete", key, "")
}

// Load returns a value, or fs.ErrNotExist.
func (s *Storage) Load(ctx context.Context, key string) ([]byte, error) {
	value, err := s.rdb.HGet(ctx, s.keys[0], clean(key)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, notExist("load", key)
	}
	return value, err
}

func notExist(op, key string) error { return &fs.PathError{Op: op, Path: key, Err: fs.ErrNotExist} }

// Exists reports whether there is a value at the key or below it. Without an answer of Redis it returns false.
func (s *Storage) Exists(ctx context.Context, key string) bool {
	_, err := s.Stat(ctx, key)
	return err == nil
}

// below returns the keys below a directory; empty is the root.
func (s *Storage) below(ctx context.Context, directory string, count int64) ([]string, error) {
	by := &redis.ZRangeBy{Min: "-", Max: "+", Count: count}
	if directory != "" {
		by.Min, by.Max = "["+directory+"/", "("+directory+"0" // the character after the slash
	}
	return s.rdb.ZRangeByLex(ctx, s.keys[3], by).Result()
}

// List returns the keys in a directory, and the directories in it; if recursive, also everything below. Without
// any, the error is fs.ErrNotExist, but for the root.
func (s *Storage) List(ctx context.Context, directory string, recursive bool) ([]string, error) {
	directory = clean(directory)
	all, err := s.below(ctx, directory, 0)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 && directory != "" {
		return nil, notExist("list", directory)
	}
	depth := 1 // of the names that are listed
	if directory != "" {
		depth = strings.Count(directory, "/") + 2
	}
	var keys []string
	for _, key := range all {
		parts := strings.Split(key, "/")
		last := len(parts)
		if !recursive {
			last = depth
		}
		for n := depth; n <= last; n++ {
			keys = append(keys, strings.Join(parts[:n], "/"))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Stat returns what is known of a key: of a directory that it is one. Otherwise the error is fs.ErrNotExist.
func (s *Storage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	name := clean(key)
	var value, at *redis.StringCmd
	_, err := s.rdb.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		value, at = pipe.HGet(ctx, s.keys[0], name), pipe.HGet(ctx, s.keys[1], name)
		return nil
	})
	if errors.Is(err, redis.Nil) {
		switch below, err := s.below(ctx, name, 1); {
		case err != nil:
			return certmagic.KeyInfo{}, err
		case len(below) == 0:
			return certmagic.KeyInfo{}, notExist("stat", key)
		}
		return certmagic.KeyInfo{Key: key}, nil
	}
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	ms, err := strconv.ParseInt(at.Val(), 10, 64)
	if err != nil {
		return certmagic.KeyInfo{}, fmt.Errorf("rlockcertmagic: the time of %q: %w", key, err)
	}
	return certmagic.KeyInfo{Key: key, Modified: time.UnixMilli(ms), Size: int64(len(value.Val())), IsTerminal: true}, nil
}
