//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A browser that opens the URL sees the lock of another process, and may end its hold if the command permits it. Whoever has
// not opened the URL sees nothing, nor does another machine.
func TestUI(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	tl.hold("invoices")
	tl.want(exitUsage, "ui", "--listen", "0.0.0.0:0")
	tl.want(exitUsage, "ui", "--listen", ":8080")
	tl.want(exitUsage, "ui", "--listen", "here")
	tl.want(exitUsage, "ui", "orders:[")

	readOnly := tl.opened("ui")
	if status, text := readOnly.stranger.get(""); status != http.StatusUnauthorized || strings.Contains(text, "<html") {
		t.Errorf("without the token: %d, %q", status, text)
	}
	if status, _ := readOnly.stranger.get("?token=x"); status != http.StatusUnauthorized {
		t.Errorf("with another token: %d", status)
	}
	if status, text := readOnly.viewer.get(""); status != http.StatusOK || !strings.Contains(text, "rlock.js") {
		t.Errorf("with the token: %d, %q", status, text)
	}
	lock, hold := readOnly.viewer.only(t, "invoices")
	if status := readOnly.viewer.end(lock, hold, ""); status != http.StatusForbidden {
		t.Errorf("a write without --writes: %d", status)
	}
	stream := readOnly.viewer.stream(t) // the end of the command ends it
	_ = readOnly.Process.Signal(unix.SIGINT)
	if _, err := io.Copy(io.Discard, stream); err != nil && err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
	if r := tl.finish(readOnly.started); r.code != 128+2 {
		t.Error(r)
	}

	writer := tl.opened("ui", "--writes", "--connect-timeout", "0.1", "inv*")
	time.Sleep(time.Second) // Redis has answered nothing, as nothing was asked
	lock, hold = writer.viewer.only(t, "invoices")
	if status := writer.viewer.end(lock, hold, "https://evil.example"); status != http.StatusForbidden {
		t.Errorf("a write from another site: %d", status)
	}
	if status := writer.stranger.end(lock, hold, ""); status != http.StatusUnauthorized {
		t.Errorf("a write without the token: %d", status)
	}
	tl.want(exitBusy, "-n", "invoices", "true")
	if status := writer.viewer.end(lock, hold, ""); status != http.StatusOK {
		t.Errorf("a write: %d", status)
	}
	tl.want(0, "-n", "invoices", "true")
}

// opened is a command that serves pages, a browser that has opened its URL, and another that has not.
type opened struct {
	*started
	viewer, stranger browser
}

type browser struct {
	*http.Client
	base string
}

func (tl *tool) opened(args ...string) *opened {
	tl.t.Helper()
	file := tl.path("url of " + strings.Join(args, " "))
	s := tl.begin(tl.command("/bin/sh", append([]string{"-c", `out=$1; shift; exec rlock "$@" >"$out"`, "sh", file}, args...)...))
	var found []string
	tl.eventually("a URL", func() bool {
		text, _ := os.ReadFile(file)
		found = regexp.MustCompile(`(http://\S+/)\?token=\w+\n`).FindStringSubmatch(string(text))
		return found != nil
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		tl.t.Fatal(err)
	}
	o := &opened{s, browser{&http.Client{Jar: jar}, found[1]}, browser{&http.Client{}, found[1]}}
	resp, err := o.viewer.Get(strings.TrimSpace(found[0]))
	if err != nil {
		tl.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Request.URL.String() != found[1] {
		tl.t.Errorf("the address is %s: it still has the token", resp.Request.URL)
	}
	return o
}

func (b browser) get(path string) (status int, text string) {
	resp, err := b.Get(b.base + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	all, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all)
}

// only returns how a request names the lock and its holder, which have to be the only ones.
func (b browser) only(t *testing.T, name string) (lock, hold string) {
	t.Helper()
	status, text := b.get("snapshot.json")
	var seen struct {
		Locks []struct {
			ID, Name string
			Holders  []struct{ Ref, Who string }
		}
	}
	if err := json.Unmarshal([]byte(text), &seen); err != nil || status != http.StatusOK {
		t.Fatalf("%d, %v: %q", status, err, text)
	}
	if len(seen.Locks) != 1 || seen.Locks[0].Name != name || len(seen.Locks[0].Holders) != 1 {
		t.Fatalf("%q", text)
	}
	return seen.Locks[0].ID, seen.Locks[0].Holders[0].Ref
}

// end asks for the end of a hold, as the page of an origin does.
func (b browser) end(lock, hold, origin string) (status int) {
	body, _ := json.Marshal(map[string]string{"action": "force-unlock", "lock": lock, "hold": hold})
	req, err := http.NewRequest(http.MethodPost, b.base+"write", bytes.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	if origin != "" {
		req.Header.Set("Origin", origin)
		req.Header.Set("Sec-Fetch-Site", "cross-site")
	}
	resp, err := b.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// stream opens the stream of events, and waits for the first.
func (b browser) stream(t *testing.T) io.Reader {
	t.Helper()
	resp, err := b.Get(b.base + "events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(err, resp.Header)
	}
	return resp.Body
}
