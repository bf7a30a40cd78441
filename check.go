package rlock

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/quorum"
	"github.com/go-rlock/rlock/internal/wire"
)

// CheckReport is the result of [Client.Check].
type CheckReport struct {
	Findings []Finding // what is wrong
	Unseen   []Finding // what the server does not show this user: it may be right or wrong
}

// Finding is one thing that is wrong, or may be. What its Code can be:
// https://go-rlock.github.io/rlock/latest/observing/#what-is-wrong
type Finding struct {
	Code    string
	Node    string // the address of the server, or the node of a RedLock; empty if not known, or for all
	Problem string
	Remedy  string
}

// String is the finding in one line.
func (f Finding) String() string {
	text := f.Code
	if f.Node != "" {
		text += " (" + f.Node + ")"
	}
	return text + ": " + f.Problem + "; " + f.Remedy
}

//go:embed docs/acl.md
var aclPage string

// Check reports what would keep locks from working: permissions, the eviction policy, versions, clocks,
// replicas, the pool. Pass what the program will use, as in client.Check(ctx,
// client.NewFairLock("orders")); without that it checks for a [Lock]. It asks the server, each master of a
// cluster, or all nodes of a [RedLock], takes no lock, and leaves nothing in Redis. Each server has the
// command timeout to answer. The error is only about the call: ErrInvalidArgument, ErrClosed or the error of
// ctx. What it finds: https://go-rlock.github.io/rlock/latest/observing/#what-is-wrong
func (c *Client) Check(ctx context.Context, locks ...interface{ Name() string }) (CheckReport, error) {
	if err := c.enter(ctx); err != nil {
		return CheckReport{}, &Error{Err: err}
	}
	defer c.endCall()
	r := &checking{c: c, users: protocol.ReadUsers(aclPage)}
	if len(locks) == 0 {
		locks = append(locks, c.NewLock("check"))
	}
	for _, l := range locks {
		if err := r.add(l); err != nil {
			return CheckReport{}, &Error{Err: err}
		}
	}
	if len(r.uses) > 0 {
		r.client(ctx)
	}
	for _, l := range r.redLocks {
		proto := l.proto.(*quorum.Lock)
		proto.EachNode(func(name string, d *wire.Deployment) {
			use := protocol.Use{Heading: "RedLock", Lock: l.name()}
			if protocol.LongestLease(l.proto) > 0 {
				use.Heading = "RedLock with WithRestartQuarantine"
			}
			r.pool(name, d)
			r.node(ctx, name, d, d.IO(), []protocol.Use{use})
		})
		proto.Quarantined(ctx, func(name string, left time.Duration) { r.refused(name, protocol.InQuarantine{Left: left}) })
	}
	return r.CheckReport, ctx.Err()
}

// checking is a Check under way.
type checking struct {
	CheckReport
	c        *Client
	users    protocol.Users
	uses     []protocol.Use
	redLocks []*RedLock
}

// add records a lock that the program wants to use.
func (r *checking) add(used any) error {
	if isNil(used) {
		return invalid("Check: a nil %T", used)
	}
	var l *core
	switch t := used.(type) {
	case *RedLock:
		if t.core == nil {
			return invalid("Check: a RedLock that was not made by a constructor")
		}
		r.redLocks = append(r.redLocks, t)
		return nil
	case *MultiLock:
		for _, m := range t.members {
			if err := r.add(m); err != nil {
				return err
			}
		}
		return nil
	case *ReadWriteLock:
		l = t.Writer.core
	case *FairReadWriteLock:
		l = t.Writer.core
	case hasCore:
		l = t.cored()
	default:
		return invalid("Check: a %T, which is no type of this package", used)
	}
	switch {
	case l == nil:
		return invalid("Check: a %T that was not made by a constructor", used)
	case l.argErr != nil:
		return l.argErr
	case l.c != r.c:
		return invalid("Check: %.100q is of another Client", l.name())
	}
	heading := l.typeName()
	if l.proto != nil {
		heading = cmp.Or(l.proto.Kind().Heading, heading)
	}
	if heading == "Lock" && l.c.cfg.quarantined {
		heading = "Lock with WithFailoverQuarantine"
	}
	r.uses = append(r.uses, protocol.Use{Heading: heading, Lock: l.name()})
	return nil
}

func (r *checking) client(ctx context.Context) {
	c := r.c
	r.pool("", c.wire)
	masters, failed, err := c.pingMasters(ctx, false)
	if err != nil {
		r.refused("", err)
		return
	}
	for i, m := range masters {
		if r.node(ctx, m.Addr, c.wire, m.Client, r.uses) && failed[i] != nil {
			why := failed[i]
			if m.Addr != "" {
				why = errors.Unwrap(why) // the finding has the address
			}
			r.refused(m.Addr, why)
		}
	}
}

func (r *checking) find(code, node, problem, remedy string, args ...any) {
	r.Findings = append(r.Findings, Finding{code, node, fmt.Sprintf(problem, args...), remedy})
}

func (r *checking) miss(code, node, problem, remedy string) {
	r.Unseen = append(r.Unseen, Finding{code, node, problem, remedy})
}

// refused adds the finding that a server grants no locks.
func (r *checking) refused(node string, err error) {
	switch {
	case wire.Ended(err):
	case errors.Is(err, ErrNotAcquired) && r.c.cfg.acks > 0 && !errors.As(err, new(protocol.InQuarantine)):
		r.find("replicas", node, "%v", fmt.Sprintf("run %d replicas that keep up, or lower WithReplicaAck", r.c.cfg.acks), err)
	case errors.As(err, new(protocol.InQuarantine)):
		r.find("refused", node, "%v", "wait until it is over; for a new deployment: Client.BootstrapServer, or RedLock.BootstrapNodes", err)
	case errors.Is(err, ErrUnreachable):
		r.find("unreachable", node, "%v", "check the address, the network, TLS and that the server runs", err)
	case noCommand(err) != "":
		r.find("missing", node, "the server has no %s, so scripts cannot be sent to it", haveCommand, noCommand(err))
	case wire.Denied(err):
		// The report already has the missing permissions.
	case strings.Contains(err.Error(), "WRONGPASS"), strings.Contains(err.Error(), "NOAUTH"):
		r.find("refused", node, "%v", "set Username and Password of the go-redis client to those of a user of this server", err)
	case strings.Contains(err.Error(), "OOM"):
		r.find("refused", node, "%v", "raise maxmemory, or make room", err)
	default:
		r.find("refused", node, "%v", "have the server accept writes", err)
	}
}

// haveCommand is the advice for a missing command: permissions do not help.
const haveCommand = "give it its name back (rename-command), have the provider or the proxy pass it on, or use another server"

// noCommand returns the command for scripts that a server does not have, according to an error reply, or "".
func noCommand(err error) string {
	if command, missing := wire.Lacking(err); missing {
		return command
	}
	return ""
}

// clockApart is the part of a watchdog lease by which clocks may differ. When the server's clock is corrected, all
// leases there end earlier or later by that difference.
const clockApart = 10

// node checks one server. It reports whether the server added to the findings of the client.
func (r *checking) node(ctx context.Context, name string, d *wire.Deployment, node redis.UniversalClient, uses []protocol.Use) (more bool) {
	cfg := &r.c.cfg
	v, err := r.c.site.Survey(ctx, d, node, cfg.commandTimeout, func(cluster bool) []protocol.Wanted {
		var also []string
		if n, _ := d.Acks(); n > 0 {
			also = append(also, "wait")
		}
		if cluster {
			also = append(also, r.users.Commands("In a cluster")...)
		}
		return r.users.Wants(cfg.prefix, uses, also...)
	})
	if err != nil {
		r.refused(name, err)
		return false
	}
	who := cmp.Or(v.User, userOf(node))
	if v.HelloErr != nil {
		r.miss("version", name, "what the server is: "+v.HelloErr.Error(), "Redis 6.2 or newer answers HELLO to everybody; a proxy may not")
	}
	if v.TooOld() {
		r.find("version", name, "%s %s", "use Redis 6.2 or newer, or Valkey", v.Server, v.Version)
	}
	replica := v.Role != "" && v.Role != "master"
	if replica {
		r.find("replica", name, "the server is a %s, which grants no locks", "connect to the master: by Sentinel, a cluster client, or its address", v.Role)
	}
	switch {
	case v.MemoryErr != nil:
		r.miss("eviction", name, "whether it evicts keys: "+v.MemoryErr.Error(), fmt.Sprintf("look at maxmemory-policy, which has to be noeviction, or ACL SETUSER %s +info", who))
	case v.Evicts():
		r.find("eviction", name, "maxmemory-policy is %s and maxmemory is %s: locks may be removed while they are held", "CONFIG SET maxmemory-policy noeviction", v.Policy, v.MaxMemory)
	}
	r.denied(name, who, &v)
	if v.ReplicasErr != nil && !errors.Is(v.ReplicasErr, redis.Nil) && !strings.HasPrefix(v.ReplicasErr.Error(), "NOPERM") {
		r.miss("replicas", name, "how many replicas there are: "+v.ReplicasErr.Error(), "look at INFO replication")
	} else if n, _ := d.Acks(); n > 0 && v.ReplicasErr == nil && v.Replicas < int64(n) && !replica {
		r.find("replicas", name, "WithReplicaAck(%d), and %d replicas confirm: no lock can be acquired", "add replicas, or lower WithReplicaAck", n, v.Replicas)
		return false
	}
	apart := v.Clock.Abs() - v.Fuzz
	switch most := cfg.watchdogLease / clockApart; {
	case v.ClockErr != nil:
		r.miss("clock", name, "its time: "+v.ClockErr.Error(), fmt.Sprintf("ACL SETUSER %s +time", who))
	case apart > most:
		how := "ahead of"
		if v.Clock < 0 {
			how = "behind"
		}
		r.find("clock", name, "its clock is %v %s that of this process: when it is set right, leases end early or late by that", "synchronize the clocks (NTP)", apart.Round(time.Millisecond), how)
	}
	return !replica
}

// userOf returns the user of the connections to a node, if the options of the client name it.
func userOf(node redis.UniversalClient) string {
	if c, ok := node.(*redis.Client); ok {
		if o := c.Options(); o.CredentialsProvider == nil && o.CredentialsProviderContext == nil && o.StreamingCredentialsProvider == nil {
			return cmp.Or(o.Username, "default")
		}
	}
	return "<user>"
}

// denied adds a finding for each permission that the user lacks.
func (r *checking) denied(node, who string, v *protocol.Survey) {
	switch {
	case noCommand(v.DeniedErr) != "": // the server has refused the PING too
	case v.DeniedErr != nil && redis.HasErrorPrefix(v.DeniedErr, "NOPERM"):
		r.find("acl", node, "it may not run scripts, which takes EVAL: %v", fmt.Sprintf("ACL SETUSER %s +eval +evalsha", who), v.DeniedErr)
	case v.DeniedErr != nil:
		r.miss("acl", node, "what the user may do: "+v.DeniedErr.Error(), "compare its permissions with docs/acl.md")
	case !v.DeniedKnown:
		r.miss("acl", node, "what the user may do: this server cannot tell", "Redis 7.0 and newer can; compare its permissions with docs/acl.md")
	}
	if len(v.Denied) == 0 {
		return
	}
	line := "ACL SETUSER " + who + grants(v.Denied)
	for _, d := range v.Denied {
		if d.Missing {
			r.find("missing", node, "the server has no %s: %s", haveCommand, strings.ToUpper(strings.ReplaceAll(d.Commands[0], "|", " ")), without(d))
			continue
		}
		if d.Pattern == "" {
			r.find("acl", node, "the user may not send %s: %s", line, strings.ToUpper(strings.ReplaceAll(d.Commands[0], "|", " ")), without(d))
			continue
		}
		kind := "keys"
		if d.Pattern[0] == '&' {
			kind = "channels"
		}
		r.find("acl", node, "the user may do nothing with the %s %s: %s", line, kind, d.Pattern[1:], without(d))
	}
}

// grants returns words of ACL SETUSER that allow what the server has denied to a user. If a request was denied for a
// key or a channel, the words allow all keys and channels of the request: the server does not say which it has denied.
func grants(all []protocol.Denied) (words string) {
	seen := map[string]bool{}
	add := func(word string) {
		if !seen[word] {
			seen[word] = true
			words += " " + word
		}
	}
	for _, d := range all {
		if d.Missing {
			continue // a permission does not help
		}
		if d.Pattern != "" {
			add(d.Pattern)
		}
		for _, command := range d.Commands {
			add("+" + command)
		}
	}
	return words
}

// without describes what does not work for a user without the permission.
func without(d protocol.Denied) string {
	command := ""
	if d.Pattern == "" {
		command = d.Commands[0]
	}
	switch {
	case strings.HasPrefix(d.Pattern, "&"), slices.Contains([]string{"publish", "spublish", "subscribe", "ssubscribe", "sunsubscribe"}, command):
		return "waiters are woken by a timer only"
	case strings.Contains(d.Pattern, "rlock:client:"), command == "getrange":
		return "it is not known which process holds a lock"
	case command == "evalsha":
		return "each request has the text of its script, by EVAL"
	case command == "client|setname":
		return "subscribed connections have no name in CLIENT LIST"
	case strings.HasPrefix(command, "pubsub|"):
		return "waiters of other processes are not counted"
	}
	return "without it, locks may not be acquired, renewed or released"
}

func (r *checking) pool(node string, d *wire.Deployment) {
	size, most := 0, 0
	switch rdb := d.Redis().(type) {
	case *redis.Client:
		size, most = rdb.Options().PoolSize, rdb.Options().MaxActiveConns
	case *redis.ClusterClient:
		size, most = rdb.Options().PoolSize, rdb.Options().MaxActiveConns
	}
	if most > 0 {
		size = min(size, most)
	}
	if size > 0 && size < wire.FewestConnections {
		r.find("pool", node, "go-redis has %d connections for each server: the requests of this process wait for each other", fmt.Sprintf("set PoolSize and MaxActiveConns to %d or more", wire.FewestConnections), size)
	}
	if n := d.Redis().PoolStats().Timeouts; n > 0 {
		r.find("pool", node, "%d commands have got no connection in time", "raise PoolSize, or give locks a go-redis client of their own", n)
	}
}
