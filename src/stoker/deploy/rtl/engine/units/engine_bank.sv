// A memory for two models: the running one is read, the other is loaded. A read is there a cycle after its address.
module engine_bank #(
    parameter int W = 128,
    parameter int WORDS = 256       // of a model
) (
    input  logic                     clk,
    input  logic                     bank,       // of the running model
    input  logic [$clog2(WORDS)-1:0] address,
    output logic [W-1:0]             data,
    input  logic                     write,
    input  logic [$clog2(WORDS)-1:0] load_address,
    input  logic [W-1:0]             load_data
);
    (* no_rw_check *) logic [W-1:0] words [2*WORDS];
    always_ff @(posedge clk) begin
        data <= words[{bank, address}];
        if (write) words[{!bank, load_address}] <= load_data;
    end
endmodule
