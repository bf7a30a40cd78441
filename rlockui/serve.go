package rlockui

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

const (
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

	writeTimeout = 10 * time.Second // of one event
	heartbeat    = 15 * time.Second // proxies close a stream that is silent for long
	firstPoll    = 30 * time.Second // how long a snapshot waits for the first poll
)

// files are the files of the pages, by the last element of their address.
var files = map[string]struct{ file, contentType string }{
	"":          {"index.html", "text/html; charset=utf-8"},
	"rlock.js":  {"rlock.js", "text/javascript; charset=utf-8"},
	"rlock.css": {"rlock.css", "text/css; charset=utf-8"},
}

// ServeHTTP implements http.Handler. Only the last element of the address counts, so it does not matter which prefix it
// has, and who strips it.
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if !u.hostAllowed(r) {
		refuse(w, http.StatusMisdirectedRequest, "the pages do not answer to this host name: see Options.Hosts")
		return
	}
	name := path.Base(r.URL.Path)
	if r.URL.Path == "" || strings.HasSuffix(r.URL.Path, "/") {
		name = ""
	}
	if name == "write" {
		u.serveWrite(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "use GET")
		return
	}
	f, isFile := files[name]
	switch {
	case name == "" && !strings.HasSuffix(asked(r), "/"):
		redirect(w, path.Base(asked(r)))
	case isFile:
		text, err := static.ReadFile("static/" + f.file)
		if err != nil {
			refuse(w, http.StatusInternalServerError, err.Error())
			return
		}
		h.Set("Content-Type", f.contentType)
		h.Set("Cache-Control", "no-cache")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	case name == "events" || name == "snapshot.json":
		u.serveData(w, r, name)
	case strings.Contains(r.Header.Get("Accept"), "text/html"):
		redirect(w, url.PathEscape(name)) // the address under which the handler is mounted, without the slash
	default:
		refuse(w, http.StatusNotFound, "no such page")
	}
}

// asked returns the escaped path that the browser has sent, or the proxy in front: the request may have lost its prefix since.
func asked(r *http.Request) string {
	if r.RequestURI == "" {
		return r.URL.EscapedPath()
	}
	sent, _, _ := strings.Cut(r.RequestURI, "?")
	return sent
}

// redirect adds a slash to the address, whose last element is given, escaped. The new one is relative to it: the prefix
// that the browser sees is not known.
func redirect(w http.ResponseWriter, name string) {
	w.Header().Set("Location", "./"+name+"/")
	w.WriteHeader(http.StatusTemporaryRedirect)
}

func refuse(w http.ResponseWriter, status int, why string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct {
		Error string `json:"error"`
	}{why})
}

// hostAllowed checks the name by which a connection to a loopback address has come: see Options.Hosts.
func (u *UI) hostAllowed(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || u.hosts["*"] {
		return true
	}
	to, err := netip.ParseAddrPort(local.String())
	if err != nil || !to.Addr().Unmap().IsLoopback() {
		return true // a unix socket, or an address that others reach too
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if u.hosts[host] {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}

// serveData answers with a snapshot, or with a stream of them.
func (u *UI) serveData(w http.ResponseWriter, r *http.Request, name string) {
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		refuse(w, http.StatusForbidden, "a page of another site must not start polls")
		return
	}
	if r.Method == http.MethodHead {
		return
	}
	v, err := u.join()
	if err != nil {
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer u.leave(v)
	q := newQuery(r.URL.Query())
	if name == "events" {
		u.stream(w, r, v, q)
		return
	}
	timer := time.NewTimer(firstPoll)
	defer timer.Stop()
	select {
	case <-v.news:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(u.view(q)) // the viewer may have gone
	case <-timer.C:
		refuse(w, http.StatusGatewayTimeout, "the first poll is not over")
	case <-u.life.Done():
		refuse(w, http.StatusServiceUnavailable, errClosed.Error())
	case <-r.Context().Done():
	}
}

// stream sends a view after each poll, until the viewer goes or the pages are closed.
func (u *UI) stream(w http.ResponseWriter, r *http.Request, v *viewer, q query) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx would keep the events back
	out := http.NewResponseController(w)
	if err := out.Flush(); errors.Is(err, http.ErrNotSupported) {
		refuse(w, http.StatusInternalServerError, "cannot stream: the ResponseWriter of a middleware has neither Flush nor Unwrap")
		return
	}
	send := func(text string) error {
		// Without a deadline a viewer that reads nothing would keep the stream forever.
		if err := out.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
		// HTTP/2 resets a stream whose deadline passes, also between two events.
		if err := out.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		return nil
	}
	if send("retry: 2000\n\n") != nil {
		return
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-r.Context().Done():
			return
		case <-u.life.Done():
			return
		case <-beat.C:
			err = send(": \n\n")
		case <-v.news:
			var text []byte
			if text, err = json.Marshal(u.view(q)); err == nil {
				err = send(fmt.Sprintf("data: %s\n\n", text)) // JSON has no line breaks
			}
		}
		if err != nil {
			return
		}
	}
}
