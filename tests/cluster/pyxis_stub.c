/* Accepts the options of pyxis but makes no container: every task gets PYXIS_STUB_CONTAINER_IMAGE=... and so on in its
 * environment, so that a test sees which container would be made. --container-workdir has its effect. An image is a file
 * with lines NAME=VALUE, the environment of the image, which wins over the job's as in pyxis. Refused as by pyxis: an
 * image or a folder to mount that does not exist, where only what begins with / or . is a file or folder. */
#include <ctype.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SPANK_PLUGIN(pyxis_stub, 1)

static const struct { char *name; int has_value; } options[] = {
    {"container-image", 1}, {"container-mounts", 1}, {"container-workdir", 1}, {"container-name", 1},
    {"container-env", 1}, {"container-mount-home", 0}, {"no-container-mount-home", 0}, {"container-writable", 0},
};
enum { IMAGE, MOUNTS, COUNT = sizeof options / sizeof *options };
static char *values[COUNT];

static int record(int number, const char *value, int is_remote)
{
    (void)is_remote;
    free(values[number]);
    values[number] = strdup(value ? value : "1");
    return ESPANK_SUCCESS;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    (void)argc, (void)argv;
    for (int i = 0; i < COUNT; i++) {
        struct spank_option option = {options[i].name, options[i].has_value ? "VALUE" : NULL, "recorded (pyxis stub)",
                                      options[i].has_value, i, record};
        if (spank_option_register(spank, &option) != ESPANK_SUCCESS)
            slurm_error("pyxis stub: cannot register --%s", options[i].name);
    }
    return ESPANK_SUCCESS;
}

static int is_path(const char *text)
{
    return *text == '/' || *text == '.';
}

/* Returns -1 if pyxis would not make the container. */
static int check(void)
{
    if (!values[IMAGE])
        return 0;
    if (is_path(values[IMAGE]) ? access(values[IMAGE], R_OK) : strstr(values[IMAGE], ".sqsh") != NULL) {
        slurm_error("pyxis stub: failed to import %s %s", is_path(values[IMAGE]) ? "file" : "docker image", values[IMAGE]);
        return -1;
    }
    char *mounts = strdup(values[MOUNTS] ? values[MOUNTS] : ""), *rest = mounts, *mount;
    while ((mount = strsep(&rest, ",")) && *mount) {
        char *source = strsep(&mount, ":"), *target = mount ? strsep(&mount, ":") : source;
        if (!is_path(source) || !is_path(target) || access(source, F_OK)) {
            slurm_error("pyxis stub: could not mount %s at %s", source, target);
            return -1;
        }
    }
    free(mounts);
    return 0;
}

static void set_environment_of_image(spank_t spank)
{
    char line[1024], *rest;
    FILE *file = values[IMAGE] && is_path(values[IMAGE]) ? fopen(values[IMAGE], "r") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        rest = line;
        char *name = strsep(&rest, "="), *value = rest ? strsep(&rest, "\n") : NULL;
        if (value)
            spank_setenv(spank, name, value, 1);
    }
    if (file)
        fclose(file);
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    (void)argc, (void)argv;
    if (check())
        return -1;
    set_environment_of_image(spank);
    for (int i = 0; i < COUNT; i++) {
        char name[96];
        if (!values[i])
            continue;
        snprintf(name, sizeof name, "PYXIS_STUB_%s", options[i].name);
        for (char *c = name; *c; c++)
            *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        spank_setenv(spank, name, values[i], 1);
        if (!strcmp(options[i].name, "container-workdir") && chdir(values[i])) {
            slurm_error("pyxis stub: there is no folder %s", values[i]);
            return -1;
        }
    }
    return ESPANK_SUCCESS;
}
