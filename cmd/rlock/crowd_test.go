//go:build unix

package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var outages = regexp.MustCompile(`(?m)^rlock: (no answer from Redis.*; this waits until there is one|Redis answers again, after .*)\n`)

// 200 at once, as they are installed: without the race detector.
func TestCrowd(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program")
	}
	t.Parallel()
	tl, _ := newTool(t)
	bin := filepath.Join(tl.dir, "built")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(bin, "rlock"), ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	write(t, tl.path("count"), "0\n")
	r := tl.with("PATH=" + bin + ":/usr/bin:/bin").sh(`
		i=0
		while [ $i -lt 200 ]; do
			rlock crowd -- sh -c 'mkdir alone || exit 1; read n < count; echo $((n+1)) > count; rmdir alone' || echo failed &
			i=$((i+1))
		done
		wait`)
	r.err = outages.ReplaceAllString(r.err, "") // a machine that is busy enough has some
	if r.code != 0 || r.out != "" || r.err != "" {
		t.Error(r)
	}
	if n := strings.TrimSpace(read(t, tl.path("count"))); n != "200" {
		t.Errorf("%s commands have counted", n)
	}
}
