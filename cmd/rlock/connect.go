package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

const defaultURL = "redis://localhost:6379"

// app has what all commands share: their output, and their common options.
type app struct {
	stdout *output
	stderr io.Writer

	urls       []string
	prefix     string
	label      string
	lease      time.Duration // 0 means the default of the library
	json       bool
	quiet      bool
	quorum     int
	quarantine bool

	connectTimeout time.Duration // bounds the wait for the first answer; 0 means no bound
	links          *links        // links of the latest deployment

	busy    int // -E
	busySet bool

	fatal os.Signal // signal from the terminal that ended the command: this process has to end by it too
}

// seconds is an option: a number of seconds, with fractions, or a duration of Go.
type seconds time.Duration

func (s *seconds) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

func (s *seconds) Type() string { return "seconds" }

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, numeric := strconv.ParseFloat(text, 64); numeric == nil && !math.IsNaN(n) {
		if math.Abs(n) > 1e9 {
			return errors.New("too large")
		}
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	switch {
	case err != nil:
		return errors.New("neither a number of seconds nor a duration such as 90s or 1.5m")
	case d < 0:
		return errors.New("negative")
	}
	*s = seconds(d)
	return nil
}

// leaseTime is how long Redis keeps a renewed hold after its last renewal.
func (a *app) leaseTime() time.Duration {
	if a.lease > 0 {
		return a.lease
	}
	return rlock.DefaultWatchdogLease
}

// connected calls f with a connection, and a context that a signal ends. Errors in other processes name this process by
// label.
func (a *app) connected(label string, f func(ctx context.Context, d *deployment) error, opts ...rlock.Option) error {
	d, err := a.connect(label, opts...)
	if err != nil {
		return err
	}
	defer d.close()
	ctx, _ := listen()
	ctx, stop := d.patient(ctx, false)
	defer stop()
	return f(ctx, d)
}

// renewed connects for a lease that is renewed while a command runs.
func (a *app) renewed(t *runTask, opts ...rlock.Option) (*deployment, error) {
	if a.lease != 0 && a.lease < time.Second {
		return nil, usage("--lease %v: at least one second, in which a command can be ended", a.lease)
	}
	return a.connect(t.label(), append(opts, rlock.WithWatchdogLease(a.leaseTime()))...)
}

// A deployment is the Redis, or the masters of a RedLock, that the URLs name.
type deployment struct {
	app     *app
	urls    []string
	rdbs    []redis.UniversalClient
	clients []*rlock.Client
	links   *links
	isAway  bool // Redis does not answer: no release is possible
}

// connect makes the clients, and sends nothing. Other processes show the label of a holder.
func (a *app) connect(label string, opts ...rlock.Option) (*deployment, error) {
	urls := a.urls
	if len(urls) == 0 {
		urls = strings.Fields(os.Getenv("REDIS_URL"))
	}
	if len(urls) == 0 {
		urls = []string{defaultURL}
	}
	if len(urls) == 1 && (a.quorum != 0 || a.quarantine) {
		return nil, usage("--quorum and --quarantine are for a RedLock: give --redis once for each of its nodes")
	}
	if a.label != "" {
		label = a.label
	}
	if label != "" {
		opts = append(opts, rlock.WithLabel(label))
	}
	if a.prefix != "" {
		opts = append(opts, rlock.WithPrefix(a.prefix))
	}
	d := &deployment{app: a, urls: urls, links: newLinks(a.needed(len(urls)))}
	a.links = d.links
	for _, u := range urls {
		rdb, address, err := open(u)
		if err != nil {
			d.close()
			return nil, err
		}
		d.links.on(rdb, address, strings.HasPrefix(u, "rediss"))
		d.rdbs = append(d.rdbs, rdb)
		client, err := rlock.New(rdb, opts...)
		if err != nil {
			d.close()
			return nil, usage("%s", plain(err))
		}
		d.clients = append(d.clients, client)
	}
	return d, nil
}

func (d *deployment) close() {
	if d.isAway {
		return // the process ends
	}
	for _, c := range d.clients {
		c.Close() // remaining holds run out with their leases
	}
	for _, rdb := range d.rdbs {
		rdb.Close()
	}
}

// one returns the client of a deployment, unless it is a RedLock. The error names what, which needs one server.
func (d *deployment) one(what string) (*rlock.Client, error) {
	if len(d.clients) > 1 {
		return nil, usage("%s needs one Redis, and --redis names %d: a RedLock has only exclusive holds of a running command", what, len(d.clients))
	}
	return d.clients[0], nil
}

// errAuthority does not quote the URL: if a password has a special character, each part that is read may belong to the
// password.
var errAuthority = usage("the URL of Redis cannot be read: percent-encode / ? # %% @ and blanks in the user and the password (%%2F %%3F %%23 %%25 %%40 %%20); " +
	"then the host and the port may be wrong")

// open makes a go-redis client of a URL, and returns the address. Errors quote only the scheme and the path of the URL: the
// part in between may have a password.
func open(raw string) (rdb redis.UniversalClient, address string, err error) {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return nil, "", usage("the URL of Redis has no scheme: redis://host:6379, rediss:// for TLS, unix:///path, redis-cluster:// or redis-sentinel://host:26379?master=NAME")
	}
	if end := strings.IndexAny(rest, "/?#"); end >= 0 && strings.ContainsAny(rest[end:], "@#") {
		return nil, "", errAuthority
	}
	plainScheme, kind, _ := strings.Cut(scheme, "-")
	unknown := usage("the URL of Redis has another scheme than redis, rediss, unix, redis-cluster, rediss-cluster, redis-sentinel and rediss-sentinel")
	if kind != "" {
		rest = addresses(rest)
	}
	u, err := url.Parse(plainScheme + "://" + rest)
	if err != nil {
		return nil, "", errAuthority
	}
	query := u.Query()
	wrong := func(err error) error {
		if secret(query) {
			err = errors.New("a parameter is wrong, and & # % + in a password are percent-encoded")
		}
		return usage("the URL of Redis: %s", plain(err))
	}
	if master := query.Get("master"); master != "" {
		query.Set("master_name", master)
		query.Del("master")
		u.RawQuery = query.Encode()
	}
	switch {
	case plainScheme != "redis" && plainScheme != "rediss" && scheme != "unix":
		return nil, "", unknown
	case kind == "sentinel" || kind == "" && query.Has("master_name"):
		opts, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, "", wrong(err)
		}
		if opts.MasterName == "" {
			return nil, "", usage("the URL of Sentinel names no master: add ?master=NAME")
		}
		opts.ContextTimeoutEnabled = true
		return redis.NewFailoverClient(opts), "Sentinel at " + strings.Join(opts.SentinelAddrs, ", "), nil
	case kind == "cluster" || kind == "" && query.Has("addr"):
		if strings.Trim(u.Path, "/") != "" {
			return nil, "", usage("the URL of a cluster has no database")
		}
		opts, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, "", wrong(err)
		}
		opts.ContextTimeoutEnabled = true
		return redis.NewClusterClient(opts), "the cluster at " + strings.Join(opts.Addrs, ", "), nil
	case kind != "":
		return nil, "", unknown
	}
	opts, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, "", wrong(err)
	}
	opts.ContextTimeoutEnabled = true
	return redis.NewClient(opts), opts.Addr, nil
}

// secret reports whether there is a password among the parameters.
func secret(query url.Values) bool {
	for name := range query {
		if strings.Contains(strings.ToLower(name), "password") {
			return true
		}
	}
	return false
}

// addresses turns user@a:1,b:2/0?x=y into user@a:1/0?x=y&addr=b:2, as go-redis wants several addresses.
func addresses(rest string) string {
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	start := strings.LastIndex(rest[:end], "@") + 1
	all := strings.Split(rest[start:end], ",")
	text := rest[:start] + all[0] + rest[end:]
	for _, more := range all[1:] {
		sep := "?"
		if strings.Contains(text, "?") {
			sep = "&"
		}
		text += sep + "addr=" + url.QueryEscape(more)
	}
	return text
}

// inspectable has the common methods of the locks of this program.
type inspectable interface {
	rlock.Locker
	rlock.Inspector
	Watch(ctx context.Context) (<-chan rlock.State, error)
}

// The locks that a name can stand for.
const (
	plainLock = iota
	fairLock
	readSide
	writeSide
)

// lock returns the lock of a name: a RedLock if there are several masters.
func (d *deployment) lock(name string, kind int) (inspectable, error) {
	if len(d.clients) > 1 {
		if kind != plainLock {
			return nil, usage("-s, -x and --fair need one Redis: a RedLock has neither sides nor an order")
		}
		return d.redLock(name)
	}
	c := d.clients[0]
	switch kind {
	case fairLock:
		return c.NewFairLock(name), nil
	case readSide:
		return c.NewReadWriteLock(name).Reader, nil
	case writeSide:
		return c.NewReadWriteLock(name).Writer, nil
	}
	return c.NewLock(name), nil
}

func (d *deployment) redLock(name string, opts ...rlock.RedLockOption) (*rlock.RedLock, error) {
	if d.app.quorum != 0 {
		opts = append(opts, rlock.WithQuorum(d.app.quorum))
	}
	if d.app.quarantine {
		opts = append(opts, rlock.WithRestartQuarantine())
	}
	lock, err := rlock.NewRedLock(name, d.clients, opts...)
	if err != nil {
		return nil, usage("%s", plain(err))
	}
	return lock, nil
}
