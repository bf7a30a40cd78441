package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// A test binary that is killed runs no cleanup. This test runs itself in a
// second binary, kills that, and looks for the server it had started.
func TestServerDiesWithTheTestBinary(t *testing.T) {
	Need(t)
	if os.Getenv("REDISTEST_CHILD") == "1" {
		fmt.Printf("pid %d\n", Start(t).Pid())
		time.Sleep(patience)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "REDISTEST_CHILD=1", "TMPDIR="+t.TempDir())
	cmd.SysProcAttr = dieWithParent()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	_, scanErr := fmt.Fscanf(out, "pid %d\n", &pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if scanErr != nil {
		t.Fatalf("no pid from the second binary: %v", scanErr)
	}
	err = await("the server to die", func() error {
		if !stopped(pid) { // nobody sent SIGSTOP, so this means gone
			return errors.New("alive")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
