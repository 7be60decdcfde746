/* Accepts the options of pyxis but makes no container: every task gets PYXIS_STUB_CONTAINER_IMAGE=... and so on in its
 * environment, so that a test sees which container would be made. --container-workdir has its effect. */
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
enum { COUNT = sizeof options / sizeof *options };
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

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    (void)argc, (void)argv;
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
            return ESPANK_ERROR;
        }
    }
    return ESPANK_SUCCESS;
}
