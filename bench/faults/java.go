package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// classPath is what Java runs the driver in interop/java with.
var classPath string

// buildJava compiles that driver.
func buildJava() error {
	dir, err := filepath.Abs("../interop/java")
	if err != nil {
		return err
	}
	// Off-line first: once the machine has what it needs, nothing is downloaded.
	for _, args := range [][]string{{"--offline"}, {}} {
		cmd := exec.Command("mvn", append(args, "--quiet", "--batch-mode", "compile")...)
		cmd.Dir = dir
		out, failed := cmd.CombinedOutput()
		if err = failed; err == nil {
			break
		}
		err = fmt.Errorf("building the Java driver: %w\n%s", err, out)
	}
	if err != nil {
		return err
	}
	jars, err := os.ReadFile(filepath.Join(dir, "target/classpath"))
	classPath = filepath.Join(dir, "target/classes") + string(filepath.ListSeparator) + strings.TrimSpace(string(jars))
	return err
}
