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
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-rlock/rlock"
)

// Headers of requests and answers.
const (
	Header         = "Idempotency-Key"
	ReplayedHeader = "Idempotent-Replayed" // "true": the answer is that of an earlier request. Stripe has it, too
)

// Defaults of the options, and bounds. Lengths are in bytes.
const (
	DefaultKeep       = 24 * time.Hour   // Stripe's
	DefaultMaxWait    = 10 * time.Second // of Prefer: wait
	DefaultMaxRequest = 1 << 20
	MaxKeyLength      = 255                            // Stripe's
	MaxAnswer         = rlock.MaxResultLength - 16<<10 // of a body that is kept; the rest is for headers
	retryAfter        = "1"                            // seconds
	problemType       = "application/problem+json"     // RFC 9457
	lockPrefix        = "idempotency:"                 // and a hash of all that the key is bound to
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

// WithReport sets who is told what the client cannot be told: that Redis does not answer, that the lease was lost while
// the handler ran, or that its answer was not kept.
func WithReport(report func(r *http.Request, err error)) Option {
	return func(m *middleware) { m.report = report }
}

type middleware struct {
	client     *rlock.Client
	principal  func(r *http.Request) string
	keep       time.Duration
	methods    []string
	optional   bool
	maxWait    time.Duration
	maxRequest int64
	headers    []string
	kept       func(status int) bool
	failOpen   bool
	report     func(r *http.Request, err error)
}

// New returns the middleware. principal returns who sends the request, such as a user or account id; it must come from
// what was authenticated. A key of one principal is nothing to another, nor on another method or path. If nobody has to
// log in, return "" for all.
//
// The handler runs with the context of a lease, which ends if that is lost. It does not end when the caller leaves:
// what has begun is executed to its end, for the request that will come again; only a stream ends then. The answer is sent as the handler
// writes it, and kept when it has returned. One that was flushed, hijacked or is longer than [MaxAnswer] is not kept:
// then a repeated request is told so (409), and is not executed either. If the handler panics, nothing is kept.
//
// The error matches rlock.ErrInvalidArgument.
func New(client *rlock.Client, principal func(r *http.Request) string, opts ...Option) (func(next http.Handler) http.Handler, error) {
	m := &middleware{
		client: client, principal: principal, keep: DefaultKeep, methods: []string{http.MethodPost, http.MethodPatch},
		maxWait: DefaultMaxWait, maxRequest: DefaultMaxRequest,
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
	case client == nil:
		return nil, invalid("the client is nil")
	case principal == nil:
		return nil, invalid("the function for the principal is nil: a key has to be bound to who sends it")
	case m.keep < rlock.MinKeep || m.keep > rlock.MaxKeep:
		return nil, invalid("answers are kept for %v: from %v to %v is possible", m.keep, rlock.MinKeep, rlock.MaxKeep)
	case len(m.methods) == 0:
		return nil, invalid("there is no method")
	case m.maxWait < 0 || m.maxRequest < 0:
		return nil, invalid("a bound is negative")
	case slices.Contains(m.headers, "Set-Cookie"):
		return nil, invalid("Set-Cookie cannot be kept")
	case m.kept == nil || m.report == nil:
		return nil, invalid("a function is nil")
	}
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
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.maxRequest))
	if err != nil {
		if errors.As(err, new(*http.MaxBytesError)) {
			problem(w, http.StatusRequestEntityTooLarge, "The body is too long", fmt.Sprintf("With an %s it may have %d bytes.", Header, m.maxRequest))
			return
		}
		problem(w, http.StatusBadRequest, "The body cannot be read", "")
		return
	}
	r = r.WithContext(r.Context()) // a copy
	r.Body = io.NopCloser(bytes.NewReader(body))
	fingerprint := hash(r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), string(body))
	once := m.client.NewOnce(lockPrefix+hash(m.principal(r), r.Method, r.URL.Path, key), m.keep)
	execute := func(ctx context.Context) ([]byte, error) { return m.execute(ctx, w, r, next, fingerprint) }

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
	rec := &recorder{ResponseWriter: w, headers: m.headers, onStream: func() { stop = context.AfterFunc(r.Context(), cancel) }}
	defer func() { stop() }()
	next.ServeHTTP(rec, r.WithContext(ctx))
	a := rec.answer()
	a.Fingerprint = fingerprint
	if !m.kept(a.Status) {
		return nil, errNotKept
	}
	result, err := a.encode()
	if err != nil {
		return nil, err
	}
	if !a.HasBody {
		m.report(r, fmt.Errorf("idempotency: the answer of %s %s is too long or was streamed, and is not kept", r.Method, r.URL.Path))
	}
	return result, nil
}

func (m *middleware) replay(w http.ResponseWriter, r *http.Request, result []byte, fingerprint string) {
	a, err := decode(result)
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
	for name, values := range a.Header {
		w.Header()[name] = values
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

// hash is that of some texts and where each ends.
func hash(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
		_, _ = io.WriteString(h, part)
	}
	return hex.EncodeToString(h.Sum(nil))
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

func (a *answer) encode() ([]byte, error) {
	head, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	if len(head)+1+len(a.body) > rlock.MaxResultLength {
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
