package idempotency

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"net/http"
	"strings"
)

// recorder passes an answer on, and keeps a copy of it while that is possible.
type recorder struct {
	http.ResponseWriter
	headers []string // that are kept
	most    int      // bytes of a body that is kept

	status    int // 0: nothing is written
	header    http.Header
	body      bytes.Buffer
	dropped   bool // the body is not kept
	flushed   bool
	streaming bool // onStream was called
	onStream  func()
}

// Unwrap is for http.ResponseController, which sets the deadlines of the inner writer.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && (status < 100 || status > 199 || status == http.StatusSwitchingProtocols) {
		r.status = status
		r.header = http.Header{}
		for _, name := range r.headers {
			if values := r.Header().Values(name); len(values) > 0 {
				r.header[name] = append([]string(nil), values...)
			}
		}
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		if _, set := r.Header()["Content-Type"]; !set && r.Header().Get("Content-Encoding") == "" && len(b) > 0 { // as net/http does, when it is too late to see it
			r.Header().Set("Content-Type", http.DetectContentType(b))
		}
		r.WriteHeader(http.StatusOK)
	}
	if !r.dropped && len(b) > r.most-r.body.Len() {
		r.drop()
	}
	if !r.dropped {
		r.body.Write(b)
	}
	n, err := r.ResponseWriter.Write(b)
	if !r.streaming { // the caller may have left. The handler should continue, so it gets no error
		return len(b), nil
	}
	return n, err
}

// drop gives up the copy. Without one there is nothing to wait for, once a part was flushed: it is a stream.
func (r *recorder) drop() {
	r.dropped, r.body = true, bytes.Buffer{}
	if r.flushed {
		r.stream()
	}
}

// stream is called when the answer is a stream: it ends when its reader leaves.
func (r *recorder) stream() {
	if !r.streaming {
		r.streaming = true
		r.onStream()
	}
}

// Flush implements http.Flusher.
func (r *recorder) Flush() { _ = r.FlushError() }

// FlushError sends what was written. Proxies and compressing writers flush answers that are no streams.
func (r *recorder) FlushError() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.flushed = true
	if r.dropped || strings.HasPrefix(r.Header().Get("Content-Type"), "text/event-stream") {
		r.stream()
	}
	err := http.NewResponseController(r.ResponseWriter).Flush()
	if !r.streaming && !errors.Is(err, http.ErrNotSupported) {
		return nil // as in Write
	}
	return err
}

// Hijack implements http.Hijacker.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.drop()
		r.stream()
		if r.status == 0 {
			r.status = http.StatusSwitchingProtocols
		}
	}
	return conn, rw, err
}

func (r *recorder) answer() *answer {
	if r.status == 0 { // the handler has written nothing, which is an empty 200
		r.status = http.StatusOK
	}
	return &answer{Status: r.status, Header: r.header, HasBody: !r.dropped, body: r.body.Bytes()}
}
