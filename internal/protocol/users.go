package protocol

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Users are the users of Redis in docs/acl.md, by heading.
type Users map[string]user

// user has the permissions of a user, for locks with the prefix of the page.
type user struct {
	patterns []string // patterns of keys and channels, with ~ or &
	commands []string // commands, without +
}

const pagePrefix = "app:"

// ReadUsers parses docs/acl.md.
func ReadUsers(page string) Users {
	users := Users{}
	for _, section := range strings.Split(page, "\n## ")[1:] {
		heading, rest, _ := strings.Cut(section, "\n")
		_, line, found := strings.Cut(rest, "```\nACL SETUSER ")
		line, _, _ = strings.Cut(line, "\n")
		if !found {
			continue
		}
		var u user
		for _, word := range strings.Fields(line) {
			switch word[0] {
			case '~', '&':
				u.patterns = append(u.patterns, word)
			case '+':
				u.commands = append(u.commands, word[1:])
			}
		}
		users[heading] = u
	}
	return users
}

// Commands are the commands of one user.
func (u Users) Commands(heading string) []string { return u[heading].commands }

// Use is a lock that a user wants to use.
type Use struct {
	Heading string // heading of the user
	Lock    string // name of the lock, with prefix
}

// forms has each command as it is sent, with K for a key and C for a channel. A form has as many words as the
// command needs, because Redis finds the keys of a command before it checks the number of words.
var forms = func() map[string]string {
	all := map[string]string{}
	for _, form := range strings.Split(`client|setname n, command, config|get x, cluster|shards, cluster|slots, decr K, decrby K 1, del K, eval 1 1 K,
evalsha 1 1 K, exists K, get K, getdel K, getex K, getrange K 0 1, hdel K f, hexists K f, hget K f, hgetall K, hincrby K f 1, hlen K, hmget K f,
hrandfield K, hscan K 0, hset K f v, hsetnx K f v, incr K, incrby K 1, info, lindex K 0, llen K, lpop K, lpos K v, lrange K 0 1,
lrem K 1 v, mget K, mset K v, pexpire K 1, ping, pttl K, publish C m, pubsub|numsub x, pubsub|shardnumsub x, readonly, rpush K v, scan 0,
set K v, spublish C m, ssubscribe C, subscribe C, sunsubscribe, time, type K, unlink K, unsubscribe, wait 1 1, zadd K 1 m, zcard K,
zcount K 0 1, zincrby K 1 m, zmscore K m, zrange K 0 1, zrangebyscore K 0 1, zrem K m, zremrangebyscore K 0 1, zrevrange K 0 1,
zscore K m, zunionstore K 1 K`, ",") {
		form = strings.TrimSpace(form)
		name, _, _ := strings.Cut(form, " ")
		all[name] = strings.Replace(form, "|", " ", 1)
	}
	return all
}()

// Wanted is one command that the user needs permission for.
type Wanted struct {
	Command string   // as in ACL SETUSER
	Pattern string   // pattern of its key or channel; empty without one
	words   []string // the command as it is sent
}

// Wants lists the commands that the users of some locks with a prefix want to send.
func (u Users) Wants(prefix string, uses []Use, also ...string) (all []Wanted) {
	listed := map[string]bool{}
	want := func(w Wanted) {
		if key := strings.Join(w.words, "\x00"); !listed[key] {
			listed[key] = true
			all = append(all, w)
		}
	}
	for _, use := range uses {
		who := u[use.Heading]
		for _, command := range slices.Concat(who.commands, also) {
			form, known := forms[command]
			if !known {
				continue // a test reports such a command
			}
			words := strings.Fields(form)
			place := slices.IndexFunc(words, func(w string) bool { return w == "K" || w == "C" })
			if place < 0 {
				want(Wanted{Command: command, words: words})
				continue
			}
			kind := map[string]byte{"K": '~', "C": '&'}[words[place]]
			for _, p := range who.patterns {
				if p[0] != kind {
					continue
				}
				pattern, samples := samples(p, prefix, use.Lock)
				for _, sample := range samples {
					sent := slices.Clone(words)
					for i, w := range sent {
						if w == "K" || w == "C" {
							sent[i] = sample
						}
					}
					want(Wanted{command, pattern, sent})
				}
			}
		}
	}
	return all
}

// samples converts a pattern of the page for locks with a prefix, and returns keys or channels of a lock that match it.
func samples(pattern, prefix, lock string) (own string, samples []string) {
	before, after, _ := strings.Cut(pattern, pagePrefix)
	if before, braced := strings.CutSuffix(before, "{"); braced {
		name := lock
		if !strings.Contains(lock, "{") {
			before, name = before+"{", lock+"}"
		}
		if own = before + escapePrefix(prefix) + "*"; len(before) <= 2 {
			name += ":rlock:check" // an additional key of the lock
		}
		return own, []string{before[1:] + name}
	}
	own = before + escapePrefix(prefix) + after
	switch {
	case after != "*":
		return own, []string{before[1:] + prefix + strings.TrimSuffix(after, "*") + "check"}
	case len(before) > 1:
		return own, []string{before[1:] + lock}
	}
	return own, []string{lock, prefix + clockName}
}

// escapePrefix is escape for a pattern of ACL SETUSER.
func escapePrefix(prefix string) string {
	if strings.ContainsAny(prefix, `*?[\`) {
		return escape(prefix)
	}
	return prefix
}

// Args returns the arguments of lock/permitted.
func Args(all []Wanted) (args []any) {
	for _, w := range all {
		args = append(args, strconv.Itoa(len(w.words)))
		for _, word := range w.words {
			args = append(args, word)
		}
	}
	return args
}

// Denied is what a user lacks permission for: a command, or, if Pattern is not empty, all commands on the keys or
// channels that match it.
type Denied struct {
	Commands []string
	Pattern  string
	Missing  bool // the server does not have the command
}

// Deny summarizes which commands are refused. refused has their numbers, from 1; see lock/permitted.
func Deny(all []Wanted, refused any) (denied []Denied, err error) {
	list, ok := refused.([]any)
	if !ok {
		return nil, fmt.Errorf("unexpected reply %v", refused)
	}
	is := func(number int) bool { return slices.Contains(list, any(int64(number))) }
	permits := map[string]bool{"": true} // patterns with which at least one command is permitted
	for i, w := range all {
		permits[w.Pattern] = permits[w.Pattern] || !is(i+1) && !is(-i-1)
	}
	for i, w := range all {
		missing := is(-i - 1)
		if !missing && !is(i+1) {
			continue
		}
		pattern := w.Pattern
		if missing || permits[pattern] {
			pattern = "" // the command is refused for all keys
		}
		at := slices.IndexFunc(denied, func(d Denied) bool {
			return d.Pattern == pattern && (pattern != "" || d.Commands[0] == w.Command)
		})
		if at < 0 {
			at, denied = len(denied), append(denied, Denied{Pattern: pattern, Missing: missing})
		}
		if !slices.Contains(denied[at].Commands, w.Command) {
			denied[at].Commands = append(denied[at].Commands, w.Command)
		}
	}
	return denied, nil
}
