/* engine/api/example.c - a program over libsluice: continues a few prompts.
 *
 *     cc example.c -o example $(pkg-config --cflags --libs sluice)
 *     ./example SmolLM2-135M.Q4_1.gguf "The capital of France is" "Water boils at" */
#include <sluice.h>

#include <stdio.h>
#include <stdlib.h>

static int print(void *ctx, const struct sluice_result *r)
{
    char **prompts = ctx;
    if (r->error)
        fprintf(stderr, "%s: %s\n", prompts[r->index], r->error);
    else
        printf("%s%s [%s, %d tokens]\n", prompts[r->index], r->text, r->finish_reason, r->n_tokens);
    return 0; // another value would stop the call
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: example MODEL PROMPT...\n");
        return SLUICE_USAGE;
    }
    const struct sluice_option options[] = {
        {"mem-ram", "1G"}, {"max-tokens", "16"}, {"temperature", "0"}};
    struct sluice_request *requests = calloc((size_t)argc, sizeof *requests);
    char *json = malloc((size_t)argc * 300);
    for (int i = 2; i < argc; i++) { // use a JSON library for quoting in a real program
        char *text = json + (size_t)i * 300;
        snprintf(text, 300, "{\"prompt\": \"%.250s\"}", argv[i]);
        requests[i - 2].json = text;
    }
    struct sluice *s;
    int code = sluice_open(&s, argv[1], options, sizeof options / sizeof options[0]);
    if (code == SLUICE_OK)
        code = sluice_batch(s, requests, argc - 2, print, argv + 2);
    if (code != SLUICE_OK && s)
        fprintf(stderr, "example: %s\n", sluice_error(s));
    sluice_close(s);
    free(json);
    free(requests);
    return code;
}
