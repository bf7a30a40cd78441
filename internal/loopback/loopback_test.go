package loopback_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/loopback"
)

const childEnv = "LOOPBACK_CHILD"

// No port is handed out twice, by this process or by another that runs beside it.
func TestPortsAreHandedOutOnce(t *testing.T) {
	const n = 150 // several blocks
	var mine []string
	for range n {
		l, err := loopback.Listen()
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		mine = append(mine, port)
		_ = l.Close() // it is free again, and still not for anybody
	}
	if os.Getenv(childEnv) != "" {
		t.Log("PORTS " + strings.Join(mine, " "))
		return
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestPortsAreHandedOutOnce$")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, theirs, ok := strings.Cut(string(out), "PORTS ")
	if !ok {
		t.Fatalf("the other process told no ports:\n%s", out)
	}
	theirs, _, _ = strings.Cut(theirs, "\n")
	seen := map[string]bool{}
	all := append(mine, strings.Fields(theirs)...)
	for _, port := range all {
		if seen[port] {
			t.Errorf("port %s was handed out twice", port)
		}
		seen[port] = true
	}
	if len(all) != 2*n {
		t.Errorf("%d ports, want %d", len(all), 2*n)
	}
}
