package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A mistake that only one platform has is found there, and nowhere else.
func TestMistakeOfOnePlatform(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":        "module x.example/x\n\ngo 1.25\n",
		"x.go":          "package x\n\nimport \"syscall\"\n\nvar _ = syscall.Getpid()\n",
		"x_windows.go":  "package x\n\nvar _ = syscall.Getpgrp()\n",
		"x_386.go":      "package x\n\nconst _ int = 1 << 40\n",
		"x_unix.go":     "//go:build unix\n\npackage x\n\nvar _ = syscallUnix()\n",
		"fine_other.go": "//go:build unix\n\npackage x\n\nimport \"syscall\"\n\nfunc syscallUnix() int { return syscall.Getpgrp() }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for platform, want := range map[string]string{
		"darwin/arm64": "", "linux/amd64": "", "windows/amd64": "undefined: syscall", "linux/386": "overflows",
	} {
		errs, err := check(dir, platform)
		if err != nil {
			t.Fatal(err)
		}
		if (len(errs) > 0) != (want != "") || want != "" && !strings.Contains(errs[0].Msg, want) {
			t.Errorf("%s: %v, want %q", platform, errs, want)
		}
	}
	if _, err := check(dir, "plan10/amd64"); err == nil {
		t.Error("no error for a platform that does not exist")
	}
	if _, err := check(dir, "linux"); err == nil {
		t.Error("no error for half a platform")
	}
}
