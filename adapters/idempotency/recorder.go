package idempotency

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
)

// recorder passes an answer on, and keeps a copy of it while that is possible.
type recorder struct {
	http.ResponseWriter
	headers []string

	status   int // 0: nothing is written
	header   http.Header
	body     bytes.Buffer
	tooLong  bool // the body is not kept
	streamed bool // flushed or hijacked: nor is it here
	onStream func()
}

// Unwrap is for http.ResponseController: deadlines are those of the writer inside.
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
	if r.streamed {
		return r.ResponseWriter.Write(b)
	}
	if r.body.Len()+len(b) > MaxAnswer {
		r.tooLong, r.body = true, bytes.Buffer{}
	}
	if !r.tooLong {
		r.body.Write(b)
	}
	// The caller may have left. The handler shall go on all the same, so it is not told.
	_, _ = r.ResponseWriter.Write(b)
	return len(b), nil
}

// stream is called when the answer is a stream: it ends when its reader leaves.
func (r *recorder) stream() {
	if !r.streamed {
		r.streamed, r.body = true, bytes.Buffer{}
		r.onStream()
	}
}

// Flush implements http.Flusher.
func (r *recorder) Flush() { _ = r.FlushError() }

// FlushError sends what was written: the answer is a stream.
func (r *recorder) FlushError() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.stream()
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
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
	return &answer{Status: r.status, Header: r.header, HasBody: !r.streamed && !r.tooLong, body: r.body.Bytes()}
}
