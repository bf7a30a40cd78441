package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// redisson3 is the version of Redisson 3 that is tried, the last of it.
const redisson3 = "3.52.0"

// classPaths are what Java runs the driver in interop/java with, by the version of Redisson: empty is the one in its pom.xml.
var classPaths = map[string]string{}

// buildJava compiles that driver for a version of Redisson.
func buildJava(redisson string) error {
	dir, err := filepath.Abs("../interop/java")
	if err != nil {
		return err
	}
	target, options := "target", []string{"--quiet", "--batch-mode", "compile"}
	if redisson != "" {
		target = filepath.Join(target, "redisson-"+redisson)
		options = append(options, "-Dredisson.version="+redisson, "-Dbuild.folder="+target)
	}
	// Off-line first: once the machine has what it needs, nothing is downloaded.
	for _, args := range [][]string{{"--offline"}, {}} {
		cmd := exec.Command("mvn", append(args, options...)...)
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
	jars, err := os.ReadFile(filepath.Join(dir, target, "classpath"))
	classPaths[redisson] = filepath.Join(dir, target, "classes") + string(filepath.ListSeparator) + strings.TrimSpace(string(jars))
	return err
}
