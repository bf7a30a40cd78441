package main

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// lacks is what rlock cannot do on this platform.
var lacks = []string{
	"there are no process groups: a command and what it starts are a job object, which ends with rlock",
	"in place of SIGTERM a command gets CTRL_BREAK; other signals are not forwarded",
	"a command gets no descriptor that tells of a loss (RLOCK_LOST_FD)",
	"there is no guard: a command whose rlock is suspended runs on until rlock is resumed",
}

var forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}

const (
	guardCommand = "--guard-of-a-command"
	execCommand  = "--command-with-a-guard"
)

func guard([]string) int     { return exitUsage }
func execLater([]string) int { return exitUsage }

func shellCommand(line string) []string { return []string{"cmd.exe", "/C", line} }

// child is a command in a job object.
type child struct {
	process *os.Process
	job     windows.Handle
	exited  chan struct{}
	code    int

	stopped   chan struct{}  // never
	continued chan os.Signal // never
}

func start(t *runTask, env func(lostFD int) []string, _ time.Duration, _ time.Time) (*child, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, fmt.Errorf("a job object: %w", err)
	}
	// When the last handle is closed, as by the death of this process, all processes of the job are killed.
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	if t.leave {
		info.BasicLimitInformation.LimitFlags = 0
	}
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info))); err != nil {
		windows.CloseHandle(job)
		return nil, fmt.Errorf("a job object: %w", err)
	}
	p, err := os.StartProcess(t.path, t.argv, &os.ProcAttr{
		Env: env(-1), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys: &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP},
	})
	if err != nil {
		windows.CloseHandle(job)
		return nil, err
	}
	h, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(p.Pid))
	if err == nil {
		err = windows.AssignProcessToJobObject(job, h)
		windows.CloseHandle(h)
	}
	if err != nil {
		_ = p.Kill()
		_, _ = p.Wait()
		windows.CloseHandle(job)
		return nil, fmt.Errorf("a job object: %w", err)
	}
	c := &child{process: p, job: job, exited: make(chan struct{})}
	go func() { // ends with the command
		defer close(c.exited)
		if state, err := p.Wait(); err == nil {
			c.code = state.ExitCode()
		}
	}()
	return c, nil
}

func (c *child) signal(os.Signal) {
	_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(c.process.Pid))
}

func (c *child) terminate() { c.signal(syscall.SIGTERM) }
func (c *child) kill()      { _ = windows.TerminateJobObject(c.job, exitSignal+9) }

func (c *child) alive() bool {
	var info struct { // JOBOBJECT_BASIC_ACCOUNTING_INFORMATION
		UserTime, KernelTime, PeriodUserTime, PeriodKernelTime int64
		PageFaults, Processes, ActiveProcesses, Terminated     uint32
	}
	err := windows.QueryInformationJobObject(c.job, windows.JobObjectBasicAccountingInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), nil)
	return err == nil && info.ActiveProcesses > 0
}

func (c *child) groupAlive() bool { return c.alive() }
func (c *child) askOrphans()      {}

func (c *child) keep(time.Time) {}
func (c *child) ending()        {}
func (c *child) lost()          {}
func (c *child) suspend()       {}
func (c *child) resume()        {}

func (c *child) interrupted() os.Signal { return nil }
func dieBy(os.Signal)                   {}

func (c *child) close() (guarded bool) {
	windows.CloseHandle(c.job)
	return false
}
