package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
)

// SpawnerFunc is the full name of the function that every goroutine kept by
// this package runs, one for each live process. It ends with the process, so a
// check in TestMain needs no exception; a check in the middle of a test, while
// servers run, passes it to goleak.IgnoreAnyFunction.
const SpawnerFunc = "github.com/go-rlock/rlock/internal/redistest.(*process).run"

// process is a child that is started, awaited and, if the test binary dies,
// killed by one goroutine.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has been waited for
}

// spawn starts the program in dir, with additions to our environment, and with its
// output going to log.
func spawn(path string, args, env []string, dir string, log *os.File) (*process, error) {
	cmd := exec.Command(path, args...)
	if len(env) > 0 {
		cmd.Env = append(os.Environ(), env...)
	}
	cmd.Dir = dir
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.SysProcAttr = dieWithParent()
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("redistest: starting %s: %w", path, err)
	}
	return p, nil
}

// run owns the child from start to end. The kernel sends the parent death
// signal when the thread that forked the child ends, not when the process
// does, and Go ends idle and locked threads at will. So the goroutine keeps
// its thread for itself until the child has been waited for; it never unlocks,
// which lets the runtime end the thread with the goroutine.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	_ = p.cmd.Wait() // the exit status is in cmd.ProcessState
	close(p.done)
}

// signal reaches the child or nobody: os.Process knows when the child has been
// waited for and its pid may belong to someone else.
func (p *process) signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// kill ends the child, a stopped one too, and returns when it is gone.
func (p *process) kill() {
	_ = p.signal(os.Kill)
	<-p.done
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
