// BEATS words of a wide one, lowest first. A wide word comes at the earliest when the last but one has left.
module serialise #(
    parameter int W = 8,       // of a narrow word
    parameter int BEATS = 2
) (
    input  logic               clk,
    input  logic               rst,
    input  logic [BEATS*W-1:0] in_data,
    input  logic               in_valid,
`ifdef UPDATABLE
    input  logic               in_bank,
    output logic               next_bank,   // of the word that leaves in the next cycle
`endif
    output logic [W-1:0]       out_data,
    output logic               out_valid
);
`ifdef UPDATABLE
    logic bank;
    assign next_bank = in_valid ? in_bank : bank;
    always_ff @(posedge clk) bank <= next_bank;
`endif

    generate
        if (BEATS == 1) begin : through
            always_ff @(posedge clk) begin
                out_data <= in_data;
                out_valid <= in_valid && !rst;
            end
        end else begin : shifted
            localparam int CW = $clog2(BEATS + 1);
            logic [BEATS*W-1:0] word;
            logic [CW-1:0] left;
            assign out_data = word[W-1:0];
            assign out_valid = left != '0;
            always_ff @(posedge clk) begin
                if (in_valid) word <= in_data;
                else word <= word >> W;
            end
            always_ff @(posedge clk) begin
                if (rst) left <= '0;
                else if (in_valid) left <= CW'(BEATS);
                else if (out_valid) left <= left - 1'b1;
            end
        end
    endgenerate
endmodule
