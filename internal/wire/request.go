package wire

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Script is one atomic operation on Redis. It may run twice.
type Script struct {
	Name string
	text func() *scriptText

	// Many, unless nil, does the same for several requests to one server: it gets the keys of all
	// of them, and then their arguments. It replies with a list, in which nil means that this
	// request has to be sent alone. It is used only in pipelines.
	Many *Script
}

// scriptText is the text of a script, and what follows from it.
type scriptText struct {
	text, sha string
	boxed     any // sha as an argument, allocated once
	publishes bool
}

// NewScript returns a script. It calls assemble when the text is first needed, once: a program uses a few of all the
// scripts.
func NewScript(name string, assemble func() (text string, publishes bool)) *Script {
	return &Script{Name: name, text: sync.OnceValue(func() *scriptText {
		text, publishes := assemble()
		sum := sha1.Sum([]byte(text))
		sha := hex.EncodeToString(sum[:])
		return &scriptText{text: text, sha: sha, boxed: sha, publishes: publishes}
	})}
}

// WithMany returns the script with many as its Many.
func (s *Script) WithMany(many *Script) *Script {
	return &Script{Name: s.Name, text: s.text, Many: many}
}

// Text returns what a server runs.
func (s *Script) Text() string { return s.text().text }

// SHA returns the SHA-1 of the text, in hexadecimal digits.
func (s *Script) SHA() string { return s.text().sha }

// Publishes reports whether the reply may be {reply, reason why Redis refused to publish}.
func (s *Script) Publishes() bool { return s.text().publishes }

// Request is one run of a script. Its first key routes it in a cluster. Each renewal has one, so its
// size matters.
type Request struct {
	Script *Script // nil if Args is a command, which any node may answer
	Keys   []string
	Args   []any

	// boxed has the n words of Put, of which the first keys words are keys. They come before Keys and Args.
	boxed   [6]any
	n, keys uint8

	// NoResend: the request must not run twice. It is not sent again once it may have run.
	NoResend bool

	// OneEffect: a reply that is a positive number, or a list that begins with such a number, means
	// that this copy did the work. Any other reply may come from a second copy, which found the work
	// done by the first. So such a reply counts only when all copies have got a reply or have failed.
	OneEffect bool

	// Each, with OneEffect: the reply is a list with a number for each of several effects, which is
	// positive if this copy had that effect. The lists of all copies are combined.
	Each bool

	// FailFast: the request is not sent again to a server that cannot be reached or does not run it
	// now, because the caller has other servers, or another way.
	FailFast bool

	// Acked: Config.Acks replicas have to confirm the writes of the script within Config.AckTimeout. A
	// WAIT on the same connection waits for them.
	Acked bool

	// Reported: the reply is passed to the report function of Round.Send.
	Reported bool

	// Main is the index of the key that may have another type if Redis replies WRONGTYPE. With Step,
	// every Step-th key after it may have another type, too.
	Main, Step uint8
}

// Name returns a name of the request for observers.
func (r *Request) Name() string {
	if r.Script == nil {
		return fmt.Sprint(r.Args[0])
	}
	return r.Script.Name
}

// Put sets the first keys and arguments. It copies them into the request, so that they do
// not need slices of their own.
func (r *Request) Put(keys int, words ...any) {
	if len(words) > len(r.boxed) {
		panic("too many words")
	}
	r.keys, r.n = uint8(keys), uint8(copy(r.boxed[:], words))
}

// Uses reports whether a key is among the keys of the request.
func (r *Request) Uses(key string) bool {
	return slices.Contains(r.boxed[:r.keys], any(key)) || slices.Contains(r.Keys, key)
}

// Renamed returns the request with another key in place of old. Copies of r may still be under way.
func (r *Request) Renamed(old, key string) *Request {
	other := *r
	for i, word := range other.boxed[:r.keys] {
		if word == old {
			other.boxed[i] = key
		}
	}
	other.Keys = slices.Clone(r.Keys)
	for i, word := range other.Keys {
		if word == old {
			other.Keys[i] = key
		}
	}
	return &other
}

// Words returns the keys and the arguments.
func (r *Request) Words() (keys []string, args []any) {
	for _, k := range r.boxed[:r.keys] {
		keys = append(keys, k.(string))
	}
	return append(keys, r.Keys...), append(slices.Clone(r.boxed[r.keys:r.n]), r.Args...)
}

// route returns the key that routes the request in a cluster.
func (r *Request) route() string {
	if r.keys > 0 {
		return r.boxed[0].(string)
	}
	return r.Keys[0]
}

// many returns the script for several such requests, or nil.
func (r *Request) many() *Script {
	if r.Script == nil {
		return nil
	}
	return r.Script.Many
}

// main returns the keys that may have another type; see Main.
func (r *Request) main() (some []string) {
	keys, _ := r.Words()
	if r.Step == 0 {
		return keys[r.Main : r.Main+1]
	}
	for i := int(r.Main); i < len(keys); i += int(r.Step) {
		some = append(some, keys[i])
	}
	return some
}

// kind returns the type that the keys of main should have.
func (r *Request) kind() string {
	switch family, _, _ := strings.Cut(r.Name(), "/"); family {
	case "semaphore", "permits", "latch", "barrier":
		return "string"
	}
	return "hash"
}

// once is a command that go-redis must not repeat: this package records each copy, and decides whether to resend.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func (r *Request) command(ctx context.Context, whole bool) once {
	cmd := redis.NewCmd(ctx, r.words(nil, whole)...)
	if r.Script != nil {
		cmd.SetFirstKeyPos(3)
	}
	return once{cmd}
}

// together returns the words of a script for many, for some requests of a batch.
func together(many *Script, batch []*Request, which []int, whole bool) []any {
	keys, n := 0, 3
	for _, i := range which {
		keys += batch[i].nKeys()
		n += batch[i].nKeys() + batch[i].nArgs()
	}
	words := many.words(make([]any, 0, n), whole, keys)
	for _, i := range which {
		words = batch[i].appendKeys(words)
	}
	for _, i := range which {
		words = batch[i].appendArgs(words)
	}
	return words
}

// words returns the words of the command, in room if that is large enough. With whole they contain the
// text of the script, for a server that does not know its hash.
func (r *Request) words(room []any, whole bool) []any {
	if r.Script == nil {
		return append(room, r.Args...)
	}
	if n := 3 + r.nKeys() + r.nArgs(); cap(room) < n {
		room = make([]any, 0, n)
	}
	return r.appendArgs(r.appendKeys(r.Script.words(room, whole, r.nKeys())))
}

func (r *Request) nKeys() int { return int(r.keys) + len(r.Keys) }
func (r *Request) nArgs() int { return int(r.n-r.keys) + len(r.Args) }

// words appends the first words of a command that runs the script.
func (s *Script) words(to []any, whole bool, keys int) []any {
	if whole {
		return append(to, "eval", s.Text(), keys)
	}
	return append(to, "evalsha", s.text().boxed, keys)
}

func (r *Request) appendKeys(to []any) []any {
	to = append(to, r.boxed[:r.keys]...)
	for _, k := range r.Keys {
		to = append(to, k)
	}
	return to
}

func (r *Request) appendArgs(to []any) []any {
	return append(append(to, r.boxed[r.keys:r.n]...), r.Args...)
}

// Answer is the outcome of a request.
type Answer struct {
	Val  any
	Acks int // replicas that confirmed
	// Receivers is how many connections got the message of the script, if the script reports it.
	Receivers int
	Err       error
	// Unsure: another copy of the request than the one with this reply may have run, or may run yet.
	Unsure bool
	// unsent: the copy that failed has not left this process, and never will.
	unsent bool
	slot   uint8 // slot of the copy in its call
}

// isDoneBy reports whether a reply means that its copy of a request with OneEffect did all the work.
func (r *Request) isDoneBy(a *Answer) bool {
	val := a.Val
	if list, ok := val.([]any); ok && len(list) > 0 && !r.Each {
		val = list[0]
	}
	n, ok := val.(int64)
	return ok && n > 0
}

// Int reads a reply that is an integer, and returns the error of the request.
func (a *Answer) Int() (int64, error) {
	if a.Err != nil {
		return 0, a.Err
	}
	n, ok := a.Val.(int64)
	if !ok {
		return 0, ErrReply(a.Val)
	}
	return n, nil
}

// Pair reads a reply that is a list beginning with two integers, and returns these and the
// rest of the list, or the error of the request.
func (a *Answer) Pair() (first, second int64, rest []any, err error) {
	if a.Err != nil {
		return 0, 0, nil, a.Err
	}
	list, _ := a.Val.([]any)
	if len(list) < 2 {
		return 0, 0, nil, ErrReply(a.Val)
	}
	first, ok1 := list[0].(int64)
	second, ok2 := list[1].(int64)
	if !ok1 || !ok2 {
		return 0, 0, nil, ErrReply(a.Val)
	}
	return first, second, list[2:], nil
}

// after combines the replies to two copies of a request with Each: each reports only the effects that its
// copy had.
func (a Answer) after(before *Answer) Answer {
	list, _ := a.Val.([]any)
	if before == nil || list == nil {
		return a
	}
	other, _ := before.Val.([]any)
	merged := slices.Clone(list)
	for i := range merged {
		if i < len(other) && other[i] == int64(1) {
			merged[i] = other[i]
		}
	}
	a.Val = merged
	return a
}

// Fields reads a reply that is a map, which is a list of keys and values under
// the older protocol.
func Fields(val any) map[string]any {
	out := map[string]any{}
	switch val := val.(type) {
	case map[any]any:
		for k, v := range val {
			out[fmt.Sprint(k)] = v
		}
	case []any:
		for i := 1; i < len(val); i += 2 {
			out[fmt.Sprint(val[i-1])] = val[i]
		}
	}
	return out
}

// unwrapPublish splits a reply of the form {reply, reason why Redis refused to publish}, or {reply, number
// of connections that got the message}: see scripts/shared/publish.lua.
func unwrapPublish(r *Request, val any) (reply any, receivers int, why string) {
	if r.Script == nil || !r.Script.Publishes() {
		return val, 0, ""
	}
	if list, ok := val.([]any); ok && len(list) == 2 {
		if text, ok := list[1].(string); ok {
			if n, err := strconv.Atoi(text); err == nil {
				return list[0], n, ""
			}
			return list[0], 0, text
		}
	}
	return val, 0, ""
}

// isPrefixed reports whether an error reply of Redis begins with a code. Redis 6 wraps the
// error of a command in a script: "ERR Error running script ...: -READONLY You can't
// write ...".
func isPrefixed(err error, code string) bool {
	return redis.HasErrorPrefix(err, code) || strings.Contains(said(err), "-"+code+" ")
}
