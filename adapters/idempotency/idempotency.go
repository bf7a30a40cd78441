// Package idempotency has HTTP requests with an Idempotency-Key executed once, and repeats the answer for those that come
// again, in all processes that share a Redis. It follows draft-ietf-httpapi-idempotency-key-header-07.
//
// A request is executed at most once while nothing crashes. If the process dies, or Redis loses its data, a request
// that is repeated is executed anew: the key is free again when the lease of the dead process is over, after up to
// 30 s. Let what it does be harmless to repeat, or write under the fencing token (rlock.LeaseFrom of the request's
// context).
package idempotency

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// Headers of requests and answers.
const (
	Header         = "Idempotency-Key"
	ReplayedHeader = "Idempotent-Replayed" // "true": the answer was given to an earlier request. Stripe has it, too
)

// Defaults of the options, and bounds. Lengths are in bytes.
const (
	DefaultKeep       = 24 * time.Hour   // Stripe's
	DefaultMaxWait    = 10 * time.Second // of Prefer: wait
	DefaultMaxRequest = 1 << 20
	DefaultMaxBodies  = 32 << 20 // of all requests
	DefaultMaxAnswer  = 64 << 10
	DefaultMaxKept    = 1000                               // answers of a principal
	MaxKeyLength      = 255                                // Stripe's
	MaxAnswer         = rlock.MaxResultLength - maxHeaders // the longest body that can be kept
	maxHeaders        = 16 << 10                           // of an answer that is kept
	retryAfter        = "1"                                // seconds
	problemType       = "application/problem+json"         // RFC 9457
	lockPrefix        = "idempotency:"                     // and a hash of all that the key is bound to
)

// An Option configures [New].
type Option func(*middleware)

// WithKeep sets for how long an answer is kept. It is yours to publish: later the same key is a new request.
func WithKeep(d time.Duration) Option { return func(m *middleware) { m.keep = d } }

// WithMethods sets to which methods it applies, by default POST and PATCH. Others pass through.
func WithMethods(methods ...string) Option { return func(m *middleware) { m.methods = methods } }

// WithOptionalKey lets requests without a key pass through. By default they are answered with 400.
func WithOptionalKey() Option { return func(m *middleware) { m.optional = true } }

// WithMaxWait bounds Prefer: wait. Zero: it is ignored.
func WithMaxWait(d time.Duration) Option { return func(m *middleware) { m.maxWait = d } }

// WithMaxRequest bounds the body of a request with a key, which is read before the handler runs. More is answered with
// 413.
func WithMaxRequest(bytes int64) Option { return func(m *middleware) { m.maxRequest = bytes } }

// WithMaxBodies bounds the bodies that are in memory at a time, each from before its first byte to its answer, of all requests of
// this middleware. A principal has a quarter at most, also "" for all, or [WithMaxRequest] if that is more. A request that needs more is
// answered with 503 and Retry-After, and not executed: it does not wait, since how long would be up to those that send slowly.
func WithMaxBodies(bytes int64) Option { return func(m *middleware) { m.maxBodies = bytes } }

// WithMaxAnswer bounds the body of an answer that is kept, up to [MaxAnswer]. A longer one is sent as it is; then a
// repeated request is answered with 409, and is not executed either.
func WithMaxAnswer(bytes int) Option { return func(m *middleware) { m.maxAnswer = bytes } }

// WithMaxKept bounds how many answers are kept for a principal. The oldest goes first, also before its time is over: a
// request that repeats its key is executed again.
func WithMaxKept(answers int) Option { return func(m *middleware) { m.maxKept = answers } }

// WithHeaders adds headers of answers that are kept, to Content-Type, -Encoding, -Language and -Disposition, Location,
// ETag, Last-Modified and Link. Set-Cookie is refused: a replay must not renew a session.
func WithHeaders(names ...string) Option {
	return func(m *middleware) {
		for _, name := range names {
			m.headers = append(m.headers, http.CanonicalHeaderKey(name))
		}
	}
}

// WithKept sets which answers are kept, by their status. By default all are, errors too, but for those that ask to try
// again: 408, 425, 429 and 503. A request whose answer is not kept is executed again.
func WithKept(kept func(status int) bool) Option { return func(m *middleware) { m.kept = kept } }

// WithFailOpen executes requests also when Redis does not answer, without any protection. By default they are answered
// with 503.
func WithFailOpen() Option { return func(m *middleware) { m.failOpen = true } }

// WithReport sets a function for what the client does not learn: that Redis does not answer, that the lease was lost while
// the handler ran, that its answer was not kept, that the body was read before, that there was no memory for it, or why
// there was no principal.
func WithReport(report func(r *http.Request, err error)) Option {
	return func(m *middleware) { m.report = report }
}

type middleware struct {
	client     *rlock.Client
	rdb        redis.UniversalClient
	namespace  string
	principal  func(r *http.Request) (string, error)
	keep       time.Duration
	methods    []string
	optional   bool
	maxWait    time.Duration
	maxRequest int64
	maxBodies  int64
	bodies     *bodies
	maxAnswer  int
	maxKept    int
	headers    []string
	kept       func(status int) bool
	failOpen   bool
	report     func(r *http.Request, err error)
}

// New returns the middleware. rdb has the Redis of the client; an index of the answers of each principal is kept there.
// The namespace is the name of the service, and is not empty: services that share a Redis do not get answers of each
// other. principal returns who sends the request, such as a user or account id; it must come from what was
// authenticated. A key of one principal is nothing to another, nor with another method, host or URI. If nobody has to log
// in, return "" for all.
//
// An error of principal refuses the request before a byte of its body is read, or anything is sent to Redis. It is
// answered as a [*Refusal] says, and otherwise with 401. principal is not called for requests that pass through.
//
// The host is the host of the request. If a proxy puts the address of a replica there, set Host before the middleware:
// otherwise each replica executes the request. The URI is what the client has sent, whatever http.StripPrefix makes of
// it.
//
// A repeated request has the same body; of multipart bodies the parts count, and not the boundary. If a handler outside
// has parsed it as a form, the form counts. A body that was read before otherwise is answered with 500. That cannot be
// seen of a part of a body without a Content-Length.
//
// The handler runs with the context of a lease, which ends if that is lost. It does not end when the caller leaves:
// what has begun is executed to its end, for the request that will come again. Only a stream ends then: text/event-stream,
// an answer that was flushed and is too long to be kept, and a connection that was hijacked. The answer is sent as the
// handler writes it, and kept when it has returned. One that is too long ([WithMaxAnswer]), a stream whose reader has
// left, and a hijacked connection are not kept: then a repeated request gets 409, and is not executed either. If
// the handler panics, nothing is kept.
//
// The error matches rlock.ErrInvalidArgument.
func New(client *rlock.Client, rdb redis.UniversalClient, namespace string, principal func(r *http.Request) (string, error), opts ...Option) (func(next http.Handler) http.Handler, error) {
	m := &middleware{
		client: client, rdb: rdb, namespace: namespace, principal: principal, keep: DefaultKeep, methods: []string{http.MethodPost, http.MethodPatch},
		maxWait: DefaultMaxWait, maxRequest: DefaultMaxRequest, maxBodies: DefaultMaxBodies, maxAnswer: DefaultMaxAnswer, maxKept: DefaultMaxKept,
		headers: []string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition", "Location", "Etag", "Last-Modified", "Link"},
		kept: func(status int) bool {
			switch status {
			case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusServiceUnavailable:
				return false
			}
			return true
		},
		report: func(*http.Request, error) {},
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalid("an option is nil")
		}
		opt(m)
	}
	switch {
	case client == nil || rdb == nil:
		return nil, invalid("a client is nil")
	case namespace == "":
		return nil, invalid("the namespace is empty: it is the name of the service")
	case principal == nil:
		return nil, invalid("the function for the principal is nil: a key has to be bound to who sends it")
	case m.keep < rlock.MinKeep || m.keep > rlock.MaxKeep:
		return nil, invalid("answers are kept for %v: from %v to %v is possible", m.keep, rlock.MinKeep, rlock.MaxKeep)
	case len(m.methods) == 0:
		return nil, invalid("there is no method")
	case m.maxWait < 0 || m.maxRequest < 0:
		return nil, invalid("a bound is negative")
	case m.maxBodies <= m.maxRequest:
		return nil, invalid("all bodies have %d bytes: more than the %d of one is possible", m.maxBodies, m.maxRequest)
	case m.maxAnswer < 0 || m.maxAnswer > MaxAnswer:
		return nil, invalid("answers of %d bytes: from 0 to %d is possible", m.maxAnswer, MaxAnswer)
	case m.maxKept < 1:
		return nil, invalid("%d answers of a principal are kept: 1 is the least", m.maxKept)
	case slices.Contains(m.headers, "Set-Cookie"):
		return nil, invalid("Set-Cookie cannot be kept")
	case m.kept == nil || m.report == nil:
		return nil, invalid("a function is nil")
	}
	m.bodies = newBodies(m.maxBodies, m.maxRequest)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("idempotency: %w: "+format, append([]any{rlock.ErrInvalidArgument}, args...)...)
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !slices.Contains(m.methods, r.Method) {
		next.ServeHTTP(w, r)
		return
	}
	values := r.Header.Values(Header)
	if len(values) == 0 {
		if m.optional {
			next.ServeHTTP(w, r)
			return
		}
		problem(w, http.StatusBadRequest, Header+" is missing", "This operation requires an "+Header+" header.")
		return
	}
	key, err := parseKey(values)
	if err != nil {
		problem(w, http.StatusBadRequest, Header+" is invalid", err.Error())
		return
	}
	principal, err := m.principal(r) // before a byte of the body is read
	if err != nil {
		m.refuse(w, r, err)
		return
	}
	body := &body{in: m.bodies, principal: principal}
	defer body.drop()
	var sent string
	err = body.read(http.MaxBytesReader(w, r.Body, m.maxRequest), r.ContentLength, m.maxRequest)
	if err == nil || errors.Is(err, http.ErrBodyReadAfterClose) {
		sent, err = fingerprint(r, body.bytes)
	}
	if err != nil {
		m.unread(w, r, err)
		return
	}
	r = r.WithContext(r.Context()) // a copy
	r.Body = io.NopCloser(bytes.NewReader(body.bytes))
	m.protect(w, r, next, principal, sent, hash(m.namespace, principal, strings.ToLower(r.Host), r.Method, sentURI(r), key))
}

// A Refusal is an error of the function for the principal that says how to answer. Other errors are answered with 401, and
// [WithReport] gets them; their text is not sent.
type Refusal struct {
	Status int         // 401 unless it is from 400 to 599
	Header http.Header // is added, such as WWW-Authenticate or Retry-After
	Detail string      // is sent
}

// Error returns the status and the detail.
func (e *Refusal) Error() string {
	return fmt.Sprintf("idempotency: refused with %d: %s", e.status(), e.Detail)
}

func (e *Refusal) status() int {
	if e.Status < 400 || e.Status > 599 {
		return http.StatusUnauthorized
	}
	return e.Status
}

// refuse answers a request without a principal.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, err error) {
	refusal := &Refusal{}
	if !errors.As(err, &refusal) {
		m.report(r, err)
	}
	for name, values := range refusal.Header {
		for _, value := range values {
			w.Header().Add(name, value)
		}
	}
	problem(w, refusal.status(), "The request is refused", refusal.Detail)
}

// unread answers a request whose body was not read, or cannot be compared.
func (m *middleware) unread(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		problem(w, http.StatusRequestEntityTooLarge, "The body is too long", fmt.Sprintf("With an %s it may have %d bytes.", Header, m.maxRequest))
	case errors.Is(err, errFull):
		m.report(r, err)
		w.Header().Set("Retry-After", retryAfter)
		problem(w, http.StatusServiceUnavailable, "Too many bodies are being read", "The request was not executed. Repeat it later, with the same key.")
	case errors.Is(err, errReadBefore):
		m.report(r, err)
		problem(w, http.StatusInternalServerError, "The "+Header+" cannot be checked", "The request was not executed.")
	default:
		problem(w, http.StatusBadRequest, "The body cannot be read", "")
	}
}

// protect answers a request that has a principal, and a name for all that its key is bound to.
func (m *middleware) protect(w http.ResponseWriter, r *http.Request, next http.Handler, principal, fingerprint, name string) {
	once := m.once(name)
	execute := func(ctx context.Context) ([]byte, error) {
		result, err := m.execute(ctx, w, r, next, fingerprint)
		if err == nil {
			if err := m.bound(context.WithoutCancel(ctx), principal, name); err != nil {
				m.report(r, err)
			}
		}
		return result, err
	}

	// What has begun is not broken off when the caller leaves.
	ctx := context.WithoutCancel(r.Context())
	result, ran, err := once.TryDo(ctx, execute)
	if wait := m.wait(r); wait > 0 && inProgress(err) {
		w.Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(wait/time.Second)))
		result, ran, err = once.Do(ctx, execute, rlock.WithWait(wait))
	}
	switch {
	case ran:
		if err != nil && !errors.Is(err, errNotKept) {
			m.report(r, err)
		}
	case err == nil:
		m.replay(w, r, result, fingerprint)
	case inProgress(err), errors.Is(err, rlock.ErrFailed), errors.Is(err, errLeft):
		w.Header().Set("Retry-After", retryAfter)
		problem(w, http.StatusConflict, "A request with this "+Header+" is in progress", "Repeat it later, with the same key.")
	case m.failOpen:
		m.report(r, err)
		next.ServeHTTP(w, r)
	default:
		m.report(r, err)
		w.Header().Set("Retry-After", retryAfter)
		problem(w, http.StatusServiceUnavailable, "The "+Header+" cannot be checked", "The request was not executed. Repeat it later, with the same key.")
	}
}

// inProgress reports whether another request has the key. Without a holder it is Redis that grants nothing.
func inProgress(err error) bool {
	var e *rlock.Error
	return errors.Is(err, rlock.ErrNotAcquired) && errors.As(err, &e) && e.HolderID != ""
}

var (
	errNotKept = errors.New("the answer asks to try again, and is not kept")
	errLeft    = errors.New("the caller has left while it waited")
)

// execute runs the handler, and returns what to keep.
func (m *middleware) execute(ctx context.Context, w http.ResponseWriter, r *http.Request, next http.Handler, fingerprint string) ([]byte, error) {
	if r.Context().Err() != nil {
		return nil, errLeft
	}
	w.Header().Del("Preference-Applied") // it did not wait for another's answer
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := func() bool { return true }
	rec := &recorder{ResponseWriter: w, headers: m.headers, most: m.maxAnswer, onStream: func() { stop = context.AfterFunc(r.Context(), cancel) }}
	defer func() { stop() }()
	next.ServeHTTP(rec, r.WithContext(ctx))
	if rec.streaming && r.Context().Err() != nil {
		rec.drop() // its end is missing, perhaps
	}
	a := rec.answer()
	a.Fingerprint = fingerprint
	if !m.kept(a.Status) {
		return nil, errNotKept
	}
	result, err := a.encode(m.maxAnswer + maxHeaders)
	if err != nil {
		return nil, err
	}
	if !a.HasBody {
		m.report(r, fmt.Errorf("idempotency: the answer of %s %s is too long to be kept, or a stream whose reader has left", r.Method, r.URL.Path))
	}
	return result, nil
}

func (m *middleware) replay(w http.ResponseWriter, r *http.Request, result []byte, fingerprint string) {
	a, err := decode(result)
	if err == nil && a.HasBody && (a.Status < 200 || a.Status > 999) {
		err = fmt.Errorf("idempotency: the answer that was kept has status %d", a.Status)
	}
	if err != nil {
		m.report(r, err)
		problem(w, http.StatusInternalServerError, "The answer that was kept cannot be read", "")
		return
	}
	if a.Fingerprint != fingerprint {
		problem(w, http.StatusUnprocessableEntity, Header+" is already used", "This key was used with another request. Use a new one.")
		return
	}
	w.Header().Set(ReplayedHeader, "true")
	if !a.HasBody {
		problem(w, http.StatusConflict, "The request was executed before", fmt.Sprintf("Its answer, with status %d, was not kept. It is not executed again.", a.Status))
		return
	}
	for _, name := range m.headers {
		if values := a.Header[name]; len(values) > 0 {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.body)
}

// wait returns for how long the caller wants to wait.
func (m *middleware) wait(r *http.Request) time.Duration {
	for _, line := range r.Header.Values("Prefer") {
		for _, part := range strings.Split(line, ",") {
			part, _, _ = strings.Cut(part, ";")
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			seconds, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
			if err != nil {
				return 0
			}
			return min(time.Duration(seconds)*time.Second, m.maxWait)
		}
	}
	return 0
}

// parseKey reads a String of RFC 8941. Many clients send the text without quotes: the same key.
func parseKey(values []string) (string, error) {
	if len(values) > 1 {
		return "", errors.New("there are several")
	}
	text := strings.TrimSpace(values[0])
	quoted := len(text) >= 2 && text[0] == '"' && text[len(text)-1] == '"'
	if quoted {
		text = text[1 : len(text)-1]
	}
	var key strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c < ' ' || c > '~', c == '"', !quoted && (c == ' ' || c == ',' || c == ';'):
			return "", errors.New("it is no string of RFC 8941")
		case quoted && c == '\\':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", errors.New("it is no string of RFC 8941")
			}
			c = text[i]
		}
		key.WriteByte(c)
	}
	if key.Len() == 0 || key.Len() > MaxKeyLength {
		return "", fmt.Errorf("it has %d characters; from 1 to %d are possible", key.Len(), MaxKeyLength)
	}
	return key.String(), nil
}

func problem(w http.ResponseWriter, status int, title, detail string) {
	text, _ := json.Marshal(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{"about:blank", title, status, detail})
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// answer is what is kept: this as JSON, a newline, and the body.
type answer struct {
	Fingerprint string
	Status      int
	Header      http.Header
	HasBody     bool
	body        []byte
}

func (a *answer) encode(most int) ([]byte, error) {
	head, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	if len(head)+1+len(a.body) > most {
		a.HasBody, a.Header, a.body = false, nil, nil
		if head, err = json.Marshal(a); err != nil {
			return nil, err
		}
	}
	return append(append(head, '\n'), a.body...), nil
}

func decode(result []byte) (a answer, err error) {
	head, body, _ := bytes.Cut(result, []byte("\n"))
	err = json.Unmarshal(head, &a)
	a.body = body
	return a, err
}
